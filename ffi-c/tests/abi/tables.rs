//! What is listed in two places is the same in both. `UPDATE=1` writes the generated one anew.

use std::fmt::Write;
use std::fs;
use std::path::PathBuf;

use pgfollow::Code;

fn in_package(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(name)
}

/// `InvalidConninfo` as `PGF_INVALID_CONNINFO`.
fn c_name(name: &str) -> String {
    name.chars().fold("PGF".to_owned(), |mut out, c| {
        if c.is_uppercase() {
            out.push('_');
        }
        out.push(c.to_ascii_uppercase());
        out
    })
}

/// `src/status.rs` as the core's table of codes has it.
fn made() -> String {
    let (mut variants, mut arms) = (String::new(), String::new());
    for (code, name, meaning) in Code::TABLE {
        let c = c_name(name);
        writeln!(variants, "    /// {}\n    {c} = {},", meaning.trim(), code.number()).unwrap();
        writeln!(arms, "            Code::{name} => Self::{c},").unwrap();
    }
    format!(
        "//! Generated from the table of `core/src/error.rs`: make gen\n\n\
         use pgfollow::Code;\n\n\
         /// What a call came to. The numbers are the same in every language, and are never used for anything else.\n\
         #[derive(Clone, Copy, Debug, PartialEq, Eq)]\n#[repr(i32)]\npub enum pgf_status {{\n    \
         /// It went well.\n    PGF_OK = 0,\n{variants}}}\n\n\
         impl pgf_status {{\n    pub(crate) fn of(code: Code) -> Self {{\n        match code {{\n{arms}            \
         // `Code` may grow; the test that made this file then fails.\n            \
         _ => Self::PGF_INTERNAL,\n        }}\n    }}\n}}\n"
    )
}

#[test]
fn a_code_that_the_core_has_and_c_lacks_is_noticed() {
    let (path, made) = (in_package("src/status.rs"), made());
    if std::env::var_os("UPDATE").is_some() {
        fs::write(&path, &made).unwrap();
    }
    let found = fs::read_to_string(&path).unwrap();
    assert!(found == made, "src/status.rs is stale: make gen");
}

#[test]
fn the_header_has_every_code_under_its_number() {
    let header = fs::read_to_string(in_package("../include/pgfollow.h")).unwrap();
    for (code, name, _) in Code::TABLE {
        let line = format!("    {} = {},", c_name(name), code.number());
        assert!(header.lines().any(|l| l == line), "include/pgfollow.h lacks {line:?}: make gen");
    }
}
