//! The configuration as documented TOML, for `terrace config print`.

use super::Config;
use super::sections::{GROUPS, SECTIONS, WorkloadGroupConfig};

impl Config {
    /// The configuration as TOML with its documentation as comments. Keys without a value, and the
    /// password, stay comments.
    pub fn to_toml(&self) -> String {
        let values = serde_json::to_value(self).unwrap_or_default();
        let mut out = String::new();
        let groups: Vec<String> = self.workload_groups.keys().map(|name| format!("{GROUPS}.{name}")).collect();
        let groups = groups.iter().map(|section| (section.as_str(), WorkloadGroupConfig::DOCS));
        for (section, docs) in SECTIONS.into_iter().chain(groups) {
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
