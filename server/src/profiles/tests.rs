//! Precedence of options, environment and profiles.
#![allow(clippy::unwrap_used)]

use super::file::Profile;
use super::*;

const ENVIRONMENT: [(&str, &str); 3] =
    [("TERRACE_URL", "grpc://env:1"), ("TERRACE_USER", "eve"), ("TERRACE_PASSWORD", "of-env")];

fn variables(name: &str) -> Option<String> {
    ENVIRONMENT.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned())
}

fn no_variables(_: &str) -> Option<String> {
    None
}

fn chosen(is_named: bool) -> Chosen {
    let profile = Profile {
        url: Some("grpc://profile:1".to_owned()),
        user: Some("pat".to_owned()),
        password_command: Some("echo of-profile".to_owned()),
        ca: Some("ca.crt".into()),
        ..Profile::default()
    };
    Chosen { name: "p".to_owned(), profile, is_named, file: "/etc/terrace/profiles.toml".into() }
}

fn layers(is_named: Option<bool>) -> Layers<'static> {
    Layers { environment: &variables, chosen: is_named.map(chosen) }
}

#[test]
fn a_place_is_an_address_or_a_profile() {
    let named = |place: &str| {
        let ConnectionOptions { url, login } = ConnectionOptions::at(place);
        [url, login.profile]
    };
    assert_eq!(named("grpc+tls://h:1"), [Some("grpc+tls://h:1".to_owned()), None]);
    assert_eq!(named("prod"), [None, Some("prod".to_owned())]);
}

#[test]
fn options_win_over_all() {
    let options =
        LoginOptions { user: Some("ann".to_owned()), password: Some("given".to_owned()), ..Default::default() };
    for is_named in [None, Some(false), Some(true)] {
        let mut layers = layers(is_named);
        assert_eq!(layers.address(Some("grpc://option:1"), &FLIGHT).unwrap(), "grpc://option:1");
        let login = layers.login(&options).unwrap();
        assert_eq!((login.user.as_deref(), login.password.as_deref()), (Some("ann"), Some("given")));
    }
}

#[test]
fn a_file_that_an_option_names_has_the_password() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("password");
    std::fs::write(&file, "of the file\r\nmore\n").unwrap();
    let options = LoginOptions { password_file: Some(file.clone()), ..Default::default() };
    for is_named in [None, Some(false), Some(true)] {
        let login = layers(is_named).login(&options).unwrap();
        assert_eq!(login.password.as_deref(), Some("of the file"));
    }
    std::fs::remove_file(&file).unwrap();
    // Nothing else stands in for a file that is missing.
    let fault = layers(Some(true)).login(&options).err().unwrap().to_string();
    assert!(fault.contains("cannot read the password"), "{fault}");
}

#[test]
fn the_environment_wins_over_a_profile_that_nobody_named() {
    let mut layers = layers(Some(false));
    let login = layers.login(&LoginOptions::default()).unwrap();
    assert_eq!((login.user.as_deref(), login.password.as_deref()), (Some("eve"), Some("of-env")));
    // What the environment does not have comes from the profile, from the folder of its file.
    assert_eq!(login.tls.ca, Some("/etc/terrace/ca.crt".into()));
    assert_eq!(layers.address(None, &FLIGHT).unwrap(), "grpc://env:1");
}

#[test]
fn the_login_of_a_profile_is_for_its_own_server() {
    let mut elsewhere = Layers { environment: &no_variables, chosen: Some(chosen(false)) };
    assert_eq!(elsewhere.address(Some("grpc://other:1"), &FLIGHT).unwrap(), "grpc://other:1");
    let login = elsewhere.login(&LoginOptions::default()).unwrap();
    assert_eq!((login.user, login.password, login.tls.ca), (None, None, None));
    let mut own = Layers { environment: &no_variables, chosen: Some(chosen(false)) };
    assert_eq!(own.address(Some("grpc://profile:1"), &FLIGHT).unwrap(), "grpc://profile:1");
    assert_eq!(own.login(&LoginOptions::default()).unwrap().password.as_deref(), Some("of-profile"));
}

#[test]
fn a_named_profile_wins_over_the_environment() {
    let mut layers = layers(Some(true));
    assert_eq!(layers.address(None, &FLIGHT).unwrap(), "grpc://profile:1");
    let login = layers.login(&LoginOptions::default()).unwrap();
    assert_eq!((login.user.as_deref(), login.password.as_deref()), (Some("pat"), Some("of-profile")));
}

#[test]
fn a_profile_of_another_server_never_falls_back_to_this_machine() {
    let fault = layers(Some(true)).address(None, &HTTP).unwrap_err().to_string();
    assert!(fault.contains("profile 'p' has no http_addr") && fault.contains("--http-addr"), "{fault}");
    assert_eq!(layers(None).address(None, &HTTP).unwrap(), HTTP_ADDR);
    let mut empty = Layers { environment: &no_variables, chosen: None };
    assert_eq!(empty.address(None, &FLIGHT).unwrap(), URL);
}

#[test]
fn a_certificate_needs_its_key() {
    let options = LoginOptions { cert: Some("a.crt".into()), ..Default::default() };
    let layers = Layers { environment: &no_variables, chosen: None };
    assert!(layers.login(&options).err().unwrap().to_string().contains("--cert-key"));
}

#[test]
fn profiles_are_chosen_by_option_variable_or_default() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("profiles.toml");
    let path = file.display().to_string();
    let find = |name: Option<&str>, variable: Option<&'static str>| {
        let path = path.clone();
        let environment = move |name: &str| match name {
            "TERRACE_PROFILES" => Some(path.clone()),
            "TERRACE_PROFILE" => variable.map(str::to_owned),
            _ => None,
        };
        Chosen::find(name, &environment).map(|chosen| chosen.map(|chosen| (chosen.name, chosen.is_named)))
    };
    assert_eq!(find(None, None).unwrap(), None);
    assert!(find(Some("a"), None).unwrap_err().to_string().contains("cannot read the profiles"));
    std::fs::write(&file, "[a]\nuser = 'ann'\n").unwrap();
    assert_eq!(find(None, None).unwrap(), None);
    assert_eq!(find(Some("a"), None).unwrap(), Some(("a".to_owned(), true)));
    assert_eq!(find(None, Some("a")).unwrap(), Some(("a".to_owned(), false)));
    assert!(find(Some("b"), None).unwrap_err().to_string().contains("no profile 'b'; there are: a"));
    std::fs::write(&file, "[default]\nuser = 'ann'\n").unwrap();
    assert_eq!(find(None, None).unwrap(), Some(("default".to_owned(), false)));
}
