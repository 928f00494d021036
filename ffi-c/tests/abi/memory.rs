//! What the sanitizers and valgrind say of programs that use the library.

use crate::build::{compile, has, ran, run};

const GCC: (&str, &str) = ("gcc", "-std=c11");

#[test]
fn the_address_sanitizer_is_linked_in_and_finds_nothing() {
    if !has("gcc") {
        return;
    }
    let sanitized = |name: &str| {
        let mut command = run(&compile(name, GCC, &["-fsanitize=address"]));
        command.env("ASAN_OPTIONS", "detect_leaks=1");
        command
    };
    for (fault, word) in [("overflow", "heap-buffer-overflow"), ("forgotten", "LeakSanitizer")] {
        let output = sanitized("broken").arg(fault).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && said.contains(word), "{fault} wasn't found: {said}");
    }
    ran("misuse under the sanitizer", &sanitized("misuse").output().unwrap());
    ran("cycles under the sanitizer", &sanitized("cycles").output().unwrap());
}

#[test]
fn valgrind_finds_no_error_and_no_leak() {
    if !has("gcc") || !has("valgrind") {
        return;
    }
    let checked = |name: &str, arg: &str| {
        let mut command = run("valgrind".as_ref());
        command.args([
            "--quiet",
            "--error-exitcode=9",
            "--leak-check=full",
            "--errors-for-leak-kinds=definite",
        ]);
        command.arg(compile(name, GCC, &[])).arg(arg);
        command.output().unwrap()
    };
    let forgotten = checked("broken", "forgotten");
    assert_eq!(forgotten.status.code(), Some(9), "valgrind misses a forgotten handle: {forgotten:?}");
    ran("cycles under valgrind", &checked("cycles", "20"));
    ran("misuse under valgrind", &checked("misuse", ""));
}
