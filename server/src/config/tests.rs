//! Tests of the configuration: order of the sources, faults, printing.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::path::PathBuf;

use terrace_tier_store::io::{Class, IoRules, Turns};

use super::*;
use crate::units::Size;

fn load(file: &str, environment: &[(&str, &str)], flags: &[&str]) -> Result<Config> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("terrace.toml");
    std::fs::write(&path, file).unwrap();
    let environment = environment.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned()));
    let flags = flags.iter().map(|f| ConfigOverride::assignment(f)).collect::<Result<_>>()?;
    Config::load(Some(&path), environment, flags)
}

#[test]
fn command_line_beats_environment_beats_file_beats_default() {
    let file = "data_dir = \"/file\"\n[query]\nmax_running = 3\nmax_queued = 4\n[tiers.dram]\nbudget = 1024\n";
    let env = [("TERRACE_DATA_DIR", "/env"), ("TERRACE_QUERY_MAX_QUEUED", "5"), ("TERRACE_PASSWORD", "12345")];
    let config =
        load(file, &[&env[..], &[("TERRACE_USER", "ann"), ("PATH", "x")]].concat(), &["data_dir=/flag"]).unwrap();
    assert_eq!(config.data_dir, PathBuf::from("/flag"));
    assert_eq!((config.query.max_queued, config.query.max_running, config.query.history), (5, 3, 1000));
    assert_eq!(config.tiers.dram.budget, Some(Size::Bytes(1024)));
    assert_eq!(config.password.as_deref(), Some("12345"));
}

#[test]
fn passwords_are_no_arguments() {
    let error = load("", &[], &["password = geheim"]).unwrap_err().to_string();
    assert!(error.contains("TERRACE_PASSWORD") && !error.contains("geheim"), "{error}");
}

#[test]
fn unknown_keys_are_refused_with_the_nearest_known_one() {
    let says = |result: Result<Config>| result.unwrap_err().to_string();
    let file = says(load("[tiers.dram]\nbugdet = \"1GiB\"\n", &[], &[]));
    assert!(file.contains("unknown key 'tiers.dram.bugdet'") && file.contains("'tiers.dram.budget'"), "{file}");
    let env = says(load("", &[("TERRACE_FLIGHT_ADR", "x")], &[]));
    assert!(env.contains("TERRACE_FLIGHT_ADR") && env.contains("did you mean 'TERRACE_FLIGHT_ADDR'"), "{env}");
    let flag = says(load("", &[], &["http.add=x"]));
    assert!(flag.contains("did you mean 'http.addr'?"), "{flag}");
    assert!(load("", &[("TERRACE_SERVICE_HOST", "10.0.0.1"), ("TERRACE_PORT_8080_TCP", "x")], &[]).is_ok());
}

#[test]
fn the_former_name_of_a_key_is_understood() {
    let level = |config: Result<Config>| config.unwrap().log.level;
    assert_eq!(level(load("", &[], &[])), LogConfig::LEVEL);
    assert_eq!(level(load("log = \"warn\"\n[query]\nhistory = 1\n", &[], &[])), "warn");
    assert_eq!(level(load("[log]\nlevel = \"error\"\n", &[], &[])), "error");
    assert_eq!(level(load("log = \"warn\"\n", &[("TERRACE_LOG", "debug")], &[])), "debug");
    let config = load("log = \"warn\"\n", &[("TERRACE_LOG", "debug")], &["log=trace", "log.format=json"]).unwrap();
    assert_eq!((config.log.level.as_str(), config.log.format), ("trace", LogFormat::Json));
    let error = load("", &[], &["log.format=xml"]).unwrap_err().to_string();
    assert!(error.contains("log.format") && error.contains("`json`"), "{error}");
}

#[test]
fn workload_groups_are_sections_with_names_of_their_own() {
    let file = "[workload_groups.loads]\nusers = \"etl, dbt\"\nmemory = \"25%\"\nmax_running = 2\n";
    let config = load(file, &[], &["workload_groups.loads.weight=3", "workload_groups.default.timeout=1h"]).unwrap();
    let loads = config.workload_groups["loads"].resolve("loads", 1000);
    assert_eq!((loads.users, loads.memory_bytes), (vec!["etl".to_owned(), "dbt".to_owned()], Some(250)));
    assert_eq!((loads.max_running, loads.weight, loads.priority), (Some(2), 3, 100));
    assert_eq!(config.workload_groups["default"].timeout.map(|span| span.0.as_secs()), Some(3600));
    let printed = config.to_toml();
    assert!(printed.contains("[workload_groups.loads]") && printed.contains("[workload_groups.default]"), "{printed}");
    assert_eq!(load(&printed, &[], &[]).unwrap(), config);
    for (file, flags, what) in [
        ("[workload_groups.loads]\nwight = 2\n", vec![], "'workload_groups.loads.weight'"),
        ("[workload_groups]\nloads = 2\n", vec![], "unknown key 'workload_groups.loads'"),
        ("", vec!["workload_groups.loads.prio=2"], "'workload_groups.loads.priority'"),
        ("", vec!["workload_groups.a b.weight=2"], "workload_groups.a b"),
        ("", vec!["workload_groups.loads.weight=0"], "at least 1"),
        ("", vec!["workload_groups.loads.memory=0"], "above 0"),
    ] {
        let error = load(file, &[], &flags).unwrap_err().to_string();
        assert!(error.contains(what), "{error}");
    }
}

#[test]
fn the_device_is_a_gpu_or_emulated_or_missing() {
    let hbm = |flags: &[&str]| load("", &[], flags).map(|config| config.tiers.hbm);
    assert_eq!(hbm(&["tiers.hbm.device=1"]).unwrap().device, Some(1));
    assert!(hbm(&["tiers.hbm.emulated=true", "tiers.hbm.capacity=64MiB", "tiers.hbm.budget=50%"]).unwrap().emulated);
    for (flags, what) in [
        (&["tiers.hbm.device=0", "tiers.hbm.emulated=true"][..], "exclude each other"),
        (&["tiers.hbm.emulated=true"][..], "tiers.hbm.capacity is missing"),
        (&["tiers.hbm.device=0", "tiers.hbm.capacity=1GiB"][..], "tiers.hbm.capacity is for an emulated device"),
        (&["tiers.hbm.budget=1GiB"][..], "there is no HBM tier"),
        (&["tiers.hbm.device=first"][..], "tiers.hbm.device"),
        (&["tiers.hbm.rate_limit=5%"][..], "rate_limit of a tier is bytes per second"),
    ] {
        let error = hbm(flags).unwrap_err().to_string();
        assert!(error.contains(what), "{error}");
    }
}

#[test]
fn a_bad_value_names_its_key_and_its_source() {
    let error = load("", &[("TERRACE_TIERS_DRAM_BUDGET", "much")], &[]).unwrap_err().to_string();
    assert!(error.contains("tiers.dram.budget") && error.contains("TERRACE_TIERS_DRAM_BUDGET"), "{error}");
    assert!(error.contains("20%"), "says how to write a size: {error}");
    let error = load("", &[], &["tiers.ssd.compression=gzip"]).unwrap_err().to_string();
    assert!(error.contains("tiers.ssd.compression") && error.contains("`zstd`"), "{error}");
    let error = load("", &[], &["tiers.ssd.format=parquet"]).unwrap_err().to_string();
    assert!(error.contains("tiers.ssd.format") && error.contains("`packed`"), "{error}");
    let error = load("", &[], &["tiers.nvm.rate_limit=5%"]).unwrap_err().to_string();
    assert!(error.contains("rate_limit of a tier is bytes per second"), "{error}");
    let error = load("", &[], &["tiering.policy=fifo"]).unwrap_err().to_string();
    assert!(error.contains("tiering.policy") && error.contains("`lru`") && error.contains("`static`"), "{error}");
    let error = load("", &[], &["io.order=point > needed"]).unwrap_err().to_string();
    assert!(error.contains("io.order") && error.contains("lacks 'spill'"), "{error}");
    let error = load("", &[], &["io.turns=random"]).unwrap_err().to_string();
    assert!(error.contains("io.turns") && error.contains("`arrival`"), "{error}");
    let error = load("", &[], &["io.admit=upkeep"]).unwrap_err().to_string();
    assert!(error.contains("io.admit") && error.contains("`prefetch`"), "{error}");
    let error = load("", &[], &["io.beside_points=5%"]).unwrap_err().to_string();
    assert!(error.contains("io.beside_points is bytes"), "{error}");
    let error = load("", &[], &["io.beside_points=100KiB"]).unwrap_err().to_string();
    assert!(error.contains("io.beside_points must be at least 256KiB"), "{error}");
    let order = "point > spill > needed > prefetch > write > upkeep";
    let order_flag = format!("io.order={order}");
    let flags = [order_flag.as_str(), "io.turns=bytes", "io.admit=needed", "io.beside_points=1MiB"];
    let config = load("", &[], &flags).unwrap();
    let rules = IoRules::new(order, Turns::Bytes).unwrap().with_admission_up_to(Class::Needed);
    assert_eq!((config.io.rules().unwrap(), config.io.beside_points.resolve(0)), (rules, 1 << 20));
    for (flags, says) in [
        (vec!["oidc.issuer=https://login.example"], "oidc.audience"),
        (vec!["oidc.audience=terrace"], "oidc.issuer"),
        (vec!["oidc.keys_file=keys.json"], "oidc.issuer"),
        (vec!["oidc.algorithms=RS256,HS256"], "'HS256' is no algorithm of public keys"),
        (vec!["oidc.algorithms=none"], "'none'"),
        (vec!["oidc.algorithms="], "no algorithm"),
        (vec!["oidc.issuer=https://a", "oidc.audience=b", "oidc.user_claim="], "oidc.user_claim"),
    ] {
        let error = load("", &[], &flags).unwrap_err().to_string();
        assert!(error.contains("oidc.") && error.contains(says), "{flags:?}: {error}");
    }
    let error = load("", &[], &["tiering.merge=sometimes"]).unwrap_err().to_string();
    assert!(error.contains("tiering.merge") && error.contains("`selective`"), "{error}");
    for (key, values) in [
        ("tiering.payback_epochs", ["0", "-1", "nan", "inf"]),
        ("hot_views.payback_epochs", ["0", "-1", "nan", "inf"]),
        ("hot_views.retire_after", ["0", "-1", "1.5", "nan"]),
        ("cluster.nodes", ["0", "17", "-1", "many"]),
        ("audit.max_bytes", ["0", "1KiB", "10%", "much"]),
        ("query_log.max_bytes", ["1023KiB", "1", "10%", "much"]),
        ("query_log.keep_for", ["0", "-1h", "soon", "nan"]),
        ("audit.keep", ["-1", "1001", "1.5", "nan"]),
        ("audit.remembered", ["-1", "100001", "1.5", "nan"]),
        ("tiering.flip_back_epochs", ["-1", "1.5", "nan", "some"]),
        ("tiering.flip_back_factor", ["0.9", "-2", "nan", "inf"]),
    ] {
        for value in values {
            let error = load("", &[], &[&format!("{key}={value}")]).unwrap_err().to_string();
            assert!(error.contains(key), "{value}: {error}");
        }
    }
    for tier in ["dram", "nvm", "ssd"] {
        for price in ["-1", "nan", "inf"] {
            let wrong = format!("tiers.{tier}.price_per_gb={price}");
            let error = load("", &[], &["tiers.dram.price_per_gb=1", &wrong]).unwrap_err().to_string();
            let says = ["a price_per_gb must be a number of at least 0", &format!("tiers.{tier}.price_per_gb")];
            assert!(says.into_iter().any(|words| error.contains(words)), "{wrong}: {error}");
            let file = format!("[tiers.{tier}]\nprice_per_gb = {price}");
            let error = load(&file, &[], &["tiers.dram.price_per_gb=1"]).map(|_| ()).map_err(|e| e.to_string());
            let wins = tier == "dram";
            assert_eq!(error.is_ok(), wins, "{file}: {error:?}");
        }
        assert!(load("", &[], &[&format!("tiers.{tier}.price_per_gb=much")]).is_err());
    }
    let numbers = [0.1, f64::from(0.1_f32), 3.5, 0.123_456_789_012].map(as_written);
    assert_eq!(numbers, [0.1, 0.1, 3.5, 0.123_456_789_012]);
    for percent in ["0", "101", "nan"] {
        let error = load("", &[], &[&format!("tiering.merge_top_percent={percent}")]).unwrap_err().to_string();
        assert!(error.contains("tiering.merge_top_percent"), "{error}");
    }
    let error = load("user = \"ann\"", &[], &[]).unwrap_err().to_string();
    assert!(error.contains("TERRACE_PASSWORD"), "{error}");
}

#[test]
fn a_printed_configuration_reads_back_and_documents_every_key() {
    let flags = ["tiers.nvm.emulated=true", "tiers.nvm.capacity=1GiB", "query.timeout=5m", "log=a\"b"];
    let config = load("", &[], &flags).unwrap();
    let printed = config.to_toml();
    assert_eq!(load(&printed, &[], &[]).unwrap(), config);
    for key in keys() {
        let field = key.rsplit('.').next().unwrap();
        assert!(printed.contains(&format!("{field} =")), "{key}");
    }
    let variables: std::collections::HashSet<String> = keys().iter().map(|k| variable(k)).collect();
    assert_eq!(variables.len(), keys().len(), "two keys share a variable");
}

#[test]
fn a_printed_configuration_hides_the_password() {
    let config = load("user = \"ann\"\npassword = \"geheim\"", &[], &[]).unwrap();
    assert!(!config.to_toml().contains("geheim"));
}
