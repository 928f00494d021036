//! Builds a C program against the library that cargo built for this test.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::{Mutex, OnceLock, PoisonError};

/// A compiler, and the language that it is asked for.
pub(crate) const COMPILERS: [(&str, &str); 4] =
    [("gcc", "-std=c11"), ("g++", "-std=c++17"), ("clang", "-std=c11"), ("clang++", "-std=c++17")];

pub(crate) fn in_package(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(name)
}

/// Whether the tool is there; else the test counts as skipped.
pub(crate) fn has(tool: &str) -> bool {
    let found = Command::new(tool).arg("--version").output().is_ok_and(|o| o.status.success());
    if !found {
        pgfollow_lab::skipped(format!("{tool} is not installed"));
    }
    found
}

/// A folder of this test's own.
pub(crate) fn folder(name: &str) -> PathBuf {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("ffi-c").join(name);
    std::fs::create_dir_all(&dir).unwrap();
    dir
}

/// The shared library as cargo left it.
pub(crate) fn shared() -> PathBuf {
    let library = std::env::current_exe().unwrap().with_file_name("libpgfollow_c.so");
    assert!(library.exists(), "cargo left no {}", library.display());
    library
}

/// A folder with the library under the names that it is installed by.
pub(crate) fn libraries() -> &'static Path {
    static DIR: OnceLock<PathBuf> = OnceLock::new();
    DIR.get_or_init(|| {
        let dir = folder("lib");
        for name in ["libpgfollow.so", "libpgfollow.so.0"] {
            let link = dir.join(name);
            let _ = std::fs::remove_file(&link);
            std::os::unix::fs::symlink(shared(), &link).unwrap();
        }
        dir
    })
}

/// Programs that are built: tests run side by side, and none may find one half written.
static BUILT: Mutex<BTreeSet<PathBuf>> = Mutex::new(BTreeSet::new());

/// Compiles `tests/c/NAME.c` with every warning an error, and gives the program's path.
pub(crate) fn compile(name: &str, compiler: (&str, &str), more: &[&str]) -> PathBuf {
    compile_in("tests/c", name, compiler, more, &[])
}

/// The same for a program elsewhere, with what another library needs behind it.
pub(crate) fn compile_in(
    dir: &str,
    name: &str,
    compiler: (&str, &str),
    more: &[&str],
    other: &[String],
) -> PathBuf {
    let (cc, std) = compiler;
    let program = folder("programs").join(format!("{name}-{cc}{}", more.concat().replace(['-', '='], "")));
    let mut built = BUILT.lock().unwrap_or_else(PoisonError::into_inner);
    if built.contains(&program) {
        return program;
    }
    let mut command = Command::new(cc);
    command.args([
        std,
        "-Wall",
        "-Wextra",
        "-Werror",
        "-pedantic",
        "-g",
        "-pthread",
        "-D_POSIX_C_SOURCE=200809L",
    ]);
    if cc.ends_with("++") {
        command.args(["-x", "c++"]);
    }
    command.args(more).arg("-I").arg(in_package("../include")).arg("-I").arg(folder("generated"));
    command.arg(in_package(dir).join(name).with_extension("c")).arg("-o").arg(&program);
    command.arg("-L").arg(libraries()).arg("-lpgfollow").args(other);
    ran(name, &command.output().unwrap());
    built.insert(program.clone());
    program
}

/// A command that finds the library.
pub(crate) fn run(program: &Path) -> Command {
    let mut command = Command::new(program);
    command.env("LD_LIBRARY_PATH", libraries());
    command
}

/// It succeeded; else everything that it printed.
pub(crate) fn ran(what: &str, output: &Output) {
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{what}: {}\n{out}\n{err}", output.status);
}
