//! What the shared library exports, and its name.

use std::collections::BTreeSet;
use std::fs;
use std::process::Command;

use crate::build::{has, in_package, shared};

fn printed(tool: &str, args: &[&str]) -> String {
    let output = Command::new(tool).args(args).arg(shared()).output().unwrap();
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn the_library_exports_what_is_listed_and_nothing_else() {
    if !has("nm") {
        return;
    }
    let list = fs::read_to_string(in_package("../include/pgfollow.symbols")).unwrap();
    let listed: BTreeSet<&str> =
        list.lines().filter(|l| !l.starts_with('#')).map(|l| l.split_once(' ').unwrap().0).collect();
    let seen = printed("nm", &["-D", "--defined-only"]);
    let mut exported: BTreeSet<&str> = seen.lines().filter_map(|l| l.split(' ').next_back()).collect();
    // The barrier's proof, in the tests' build alone.
    assert_eq!(exported.remove("pgf_test_panic"), cfg!(feature = "test-entry"));
    assert_eq!(exported, listed, "include/pgfollow.symbols lists what the library exports, with the version");
    let header = fs::read_to_string(in_package("../include/pgfollow.h")).unwrap();
    for symbol in listed {
        assert!(header.contains(&format!("{symbol}(")), "{symbol} is in no header");
    }
    assert!(!header.contains("pgf_test"), "the tests' entry is in the header");
}

#[test]
fn the_library_s_name_has_the_number_of_its_abi() {
    if has("readelf") {
        assert!(printed("readelf", &["-d"]).contains("Library soname: [libpgfollow.so.0]"));
    }
}
