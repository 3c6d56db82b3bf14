//! The configuration as documented TOML, for `terrace config print`.

use super::Config;
use super::sections::SECTIONS;

impl Config {
    /// The configuration as TOML with its documentation as comments. Keys without a value, and the
    /// password, stay comments.
    pub fn to_toml(&self) -> String {
        let values = serde_json::to_value(self).unwrap_or_default();
        let mut out = String::new();
        for (section, docs) in SECTIONS {
            let pointer = if section.is_empty() { String::new() } else { format!("/{}", section.replace('.', "/")) };
            let fields: Vec<_> = docs
                .iter()
                .filter_map(|(field, doc)| Some((field, doc, values.pointer(&format!("{pointer}/{field}"))?)))
                .filter(|(_, _, value)| !value.is_object())
                .collect();
            if fields.is_empty() {
                continue;
            }
            if !section.is_empty() {
                out.push_str(&format!("[{section}]\n"));
            }
            for (field, doc, value) in fields {
                for line in *doc {
                    out.push_str(&format!("#{line}\n"));
                }
                match value {
                    serde_json::Value::Null => out.push_str(&format!("# {field} =\n")),
                    _ if *field == "password" => out.push_str("# password = (set, not shown)\n"),
                    // JSON's scalars are TOML's, escapes of strings included.
                    value => out.push_str(&format!("{field} = {value}\n")),
                }
            }
            out.push('\n');
        }
        out
    }
}
