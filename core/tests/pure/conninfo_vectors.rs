//! Every case of `tests/vectors/conninfo`: one JSON object a line, in the form that its README describes.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use pgfollow::config::AuthMethod;
use pgfollow::failure::Failure;
use pgfollow::host::Port;
use pgfollow::{Class, Config, Environment, Error, Stage, conninfo};
use serde_json::{Map, Value};

/// A folder of the case's own, removed when the case is done.
struct Home(PathBuf);

impl Home {
    fn new(id: &str) -> Self {
        let dir = std::env::temp_dir().join(format!("pgfollow-conninfo-{}-{id}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        Self(dir)
    }

    fn write(&self, name: &str, file: &Value) {
        let path = self.0.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, file["text"].as_str().unwrap()).unwrap();
        let mode = u32::from_str_radix(file["mode"].as_str().unwrap_or("0600"), 8).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
    }

    fn fill_in(&self, text: &str) -> String {
        text.replace("$HOME", self.0.to_str().unwrap())
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn object(v: &Value) -> Map<String, Value> {
    v.as_object().cloned().unwrap_or_default()
}

fn texts(v: &Value) -> Vec<&str> {
    v.as_array().map(|a| a.iter().map(|t| t.as_str().unwrap()).collect()).unwrap_or_default()
}

/// What a connect would say of the hosts that can't be dialled as configured.
fn failures_of_hosts(config: &Config) -> String {
    let bad = config.hosts.iter().filter_map(|h| match h.port() {
        Port::Invalid(text) => Some(Failure::BadPort(text.clone()).to_string()),
        Port::Number(_) => None,
    });
    bad.collect::<Vec<_>>().join("; ")
}

struct Case<'a> {
    id: &'a str,
    text: String,
    expect: &'a Value,
    problems: Vec<String>,
}

impl Case<'_> {
    fn check(&mut self, what: &str, ok: bool, seen: impl std::fmt::Debug) {
        if !ok {
            self.problems.push(format!("{}: {what}: seen {seen:?}", self.id));
        }
    }

    fn good(&mut self, config: &Config) {
        let given = conninfo::parse(&self.text).unwrap();
        let effective = config.to_json();
        let expect = object(self.expect);
        for (key, want) in &expect {
            match key.as_str() {
                // The freedom that a case gives; we need none.
                "ok" | "also_accepted" | "if_unsupported" | "secrets" => {}
                "targets" => {
                    let seen = serde_json::to_value(config.configured_hosts()).unwrap();
                    let fits = |s: &Value, w: &Value| {
                        ["kind", "host", "hostaddr", "dir", "port"].iter().all(|k| s[*k] == w[*k])
                    };
                    let (s, w) = (seen.as_array().unwrap(), want.as_array().unwrap());
                    self.check(
                        "targets",
                        s.len() == w.len() && s.iter().zip(w).all(|(s, w)| fits(s, w)),
                        &seen,
                    );
                }
                "params" => {
                    for (name, value) in object(want) {
                        let seen = given.iter().find(|p| p.0 == name).map(|p| p.1.as_str());
                        self.check(&format!("param {name}"), seen == value.as_str(), seen);
                    }
                }
                "absent" => {
                    for name in texts(want) {
                        self.check(&format!("absent {name}"), given.iter().all(|p| p.0 != name), &given);
                    }
                }
                "effective" | "origins" => {
                    let part = if key == "effective" { "value" } else { "origin" };
                    for (name, value) in object(want) {
                        let seen = &effective["options"][&name][part];
                        self.check(&format!("{part} of {name}"), *seen == value, seen);
                    }
                }
                "passwords" => {
                    let seen: Vec<_> =
                        config.passwords.iter().map(|p| p.as_ref().map(|p| p.reveal())).collect();
                    self.check("passwords", serde_json::to_value(&seen).unwrap() == *want, &seen);
                }
                "password_sources" => {
                    let seen: Vec<_> =
                        config.configured_hosts().into_iter().map(|h| h.password_source).collect();
                    self.check("password sources", serde_json::to_value(&seen).unwrap() == *want, &seen);
                }
                "warns_any" => {
                    let found =
                        texts(want).iter().any(|w| config.warnings.iter().any(|seen| seen.contains(w)));
                    self.check("warning", found, &config.warnings);
                }
                "no_warning" => self.check("no warning", config.warnings.is_empty(), &config.warnings),
                "connect_timeout_s" => {
                    self.check(
                        "connect_timeout",
                        config.connect_timeout == want.as_u64().map(Duration::from_secs),
                        config.connect_timeout,
                    );
                }
                "require_auth" => {
                    let name = |m: &AuthMethod| match m {
                        AuthMethod::Password => "password",
                        AuthMethod::Md5 => "md5",
                        AuthMethod::ScramSha256 => "scram-sha-256",
                        AuthMethod::None => "none",
                    };
                    let seen = config.require_auth.as_ref().map(|l| l.iter().map(name).collect::<Vec<_>>());
                    self.check("require_auth", serde_json::to_value(&seen).unwrap() == *want, &seen);
                }
                "application_name" => {
                    self.check("application_name", want.as_str() == Some(&config.application_name), config);
                }
                "startup_options" => {
                    self.check("options", config.options.as_deref() == want.as_str(), &config.options);
                }
                "libpq" => {
                    let seen = config.libpq_string();
                    self.check("libpq string", Some(seen.as_str()) == want.as_str(), &seen);
                }
                other => panic!("{}: the runner doesn't know {other:?}", self.id),
            }
        }
        // The password itself is in `passwords` alone; neither what is printed nor what is logged has it.
        let printed = format!("{effective} {config:?} {}", config.libpq_string());
        self.keeps_secrets(&printed);
    }

    fn bad(&mut self, result: &Result<Config, Error>) {
        for key in object(self.expect).keys() {
            let known =
                ["ok", "no_later_than", "mentions_any", "mentions_all", "secrets", "code", "if_unsupported"];
            assert!(known.contains(&key.as_str()), "{}: the runner doesn't know {key:?}", self.id);
        }
        let when = self.expect["no_later_than"].as_str().unwrap();
        let message = match (result, when) {
            (Err(e), _) => {
                self.check("class", e.class() == Class::Permanent && e.stage() == Some(Stage::Configure), e);
                if let Some(code) = self.expect["code"].as_str() {
                    self.check("code", e.code().name() == code, e);
                }
                if when == "parse" {
                    self.check("fails as text", conninfo::parse(&self.text).is_err(), e);
                }
                format!("{e} {e:?}")
            }
            (Ok(config), "connect") => {
                format!("{} {config:?} {}", failures_of_hosts(config), config.to_json())
            }
            (Ok(config), _) => return self.check("an error", false, config),
        };
        let any = texts(&self.expect["mentions_any"]);
        self.check("mentions", any.iter().any(|m| message.contains(m)), &message);
        for m in texts(&self.expect["mentions_all"]) {
            self.check(&format!("mentions {m}"), message.contains(m), &message);
        }
        self.keeps_secrets(&message);
    }

    fn keeps_secrets(&mut self, text: &str) {
        for secret in texts(&self.expect["secrets"]) {
            self.check(&format!("keeps {secret} secret"), !text.contains(secret), text);
        }
    }
}

fn run(line: &str) -> Vec<String> {
    let case: Value = serde_json::from_str(line).unwrap();
    let id = case["id"].as_str().unwrap();
    let home = Home::new(id);
    for (name, file) in object(&case["input"]["files"]) {
        home.write(&name, &file);
    }
    let mut env = Environment::empty()
        .with("HOME", home.0.to_str().unwrap())
        .with_user("osuser")
        .with_socket_dir("/run/default")
        .with_sysconf_dir(home.0.join("no-such-folder"));
    for (name, value) in object(&case["input"]["env"]) {
        env = env.with(&name, &home.fill_in(value.as_str().unwrap()));
    }
    let text = home.fill_in(case["input"]["conninfo"].as_str().unwrap());
    let result = Config::parse_in(&text, &env);
    let mut checks = Case { id, text, expect: &case["expect"], problems: Vec::new() };
    match (&result, case["expect"]["ok"].as_bool().unwrap()) {
        (Ok(config), true) => checks.good(config),
        (Err(e), true) => checks.problems.push(format!("{id}: unexpected error: {e}")),
        (_, false) => checks.bad(&result),
    }
    checks.problems
}

#[test]
fn every_vector_holds() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/vectors/conninfo");
    let (mut count, mut problems) = (0, Vec::new());
    let mut files: Vec<_> = fs::read_dir(&dir).unwrap().map(|f| f.unwrap().path()).collect();
    files.retain(|f| f.extension().is_some_and(|e| e == "jsonl"));
    files.sort();
    for file in files {
        for line in fs::read_to_string(&file).unwrap().lines().filter(|l| !l.is_empty()) {
            count += 1;
            problems.extend(run(line));
        }
    }
    assert!(problems.is_empty(), "{} problems in {count} cases:\n{}", problems.len(), problems.join("\n"));
    assert!(count >= 150, "only {count} cases were found in {}", dir.display());
}
