//! Keys in the file that the tools of AWS share (`~/.aws/credentials`): sections of profiles, each with `name = value` lines.

use std::path::PathBuf;

/// The keys of a profile.
#[derive(Clone, PartialEq, Eq, Default)]
pub(crate) struct Keys {
    pub(crate) id: String,
    pub(crate) secret: String,
    pub(crate) token: Option<String>,
}

/// The keys of this user's profile; `None` when there is no such file or profile. The variables are those of the tools.
pub(crate) fn keys_of_user() -> Option<Keys> {
    let named = |variable: &str| std::env::var(variable).ok().filter(|value| !value.is_empty());
    let in_home = || named("HOME").map(|home| PathBuf::from(home).join(".aws/credentials"));
    let file = named("AWS_SHARED_CREDENTIALS_FILE").map(PathBuf::from).or_else(in_home)?;
    let text = std::fs::read_to_string(file).ok()?;
    keys(&text, &named("AWS_PROFILE").unwrap_or_else(|| "default".to_owned()))
}

/// The keys of a profile in the text of such a file; `None` when one of the two is missing.
fn keys(text: &str, profile: &str) -> Option<Keys> {
    let mut keys = Keys::default();
    let mut is_wanted = false;
    for line in text.lines().map(str::trim).filter(|line| !line.starts_with(['#', ';'])) {
        if let Some(section) = line.strip_prefix('[').and_then(|line| line.strip_suffix(']')) {
            is_wanted = section.trim() == profile;
        } else if let (true, Some((name, value))) = (is_wanted, line.split_once('=')) {
            let value = value.trim().to_owned();
            match name.trim() {
                "aws_access_key_id" => keys.id = value,
                "aws_secret_access_key" => keys.secret = value,
                "aws_session_token" => keys.token = Some(value),
                _ => {}
            }
        }
    }
    (!keys.id.is_empty() && !keys.secret.is_empty()).then_some(keys)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_profile_has_its_own_keys() {
        let text = "# keys\n[default]\naws_access_key_id = A\naws_secret_access_key=s=1\n\n[ other ]\naws_access_key_id=B\n\
                    aws_secret_access_key = t\naws_session_token = u\nregion = eu\n[half]\naws_access_key_id = C\n";
        let found = keys(text, "default").unwrap();
        assert_eq!((found.id.as_str(), found.secret.as_str(), found.token), ("A", "s=1", None));
        let found = keys(text, "other").unwrap();
        assert_eq!((found.id.as_str(), found.token.as_deref()), ("B", Some("u")));
        assert!(keys(text, "half").is_none() && keys(text, "none").is_none() && keys("", "default").is_none());
    }
}
