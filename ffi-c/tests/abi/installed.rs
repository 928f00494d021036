//! What `make install` leaves: programs are built against it as a user's would be, by pkg-config and by CMake.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::build::{folder, has, in_package, ran, shared};

/// The tests' own build, installed for good, into a folder of that name.
fn installed(name: &str) -> PathBuf {
    let prefix = folder("installed").join(name);
    let _ = fs::remove_dir_all(&prefix);
    let mut command = Command::new(in_package("install.sh"));
    command.arg(shared().parent().unwrap()).env("PREFIX", &prefix).env_remove("DESTDIR").env_remove("LIBDIR");
    ran("install.sh", &command.output().unwrap());
    prefix
}

fn words(text: &[u8]) -> Vec<String> {
    String::from_utf8_lossy(text).split_whitespace().map(str::to_owned).collect()
}

fn flags(prefix: &Path, asked: &[&str]) -> Vec<String> {
    let mut command = Command::new("pkg-config");
    command.args(asked).arg("pgfollow").env("PKG_CONFIG_PATH", prefix.join("lib/pkgconfig"));
    let output = command.output().unwrap();
    ran("pkg-config", &output);
    words(&output.stdout)
}

#[test]
fn a_program_is_built_by_pkg_config_against_the_shared_and_the_static_library() {
    if !["gcc", "pkg-config"].into_iter().all(has) {
        return;
    }
    let prefix = installed("pkg-config");
    assert_eq!(flags(&prefix, &["--modversion"]), [env!("CARGO_PKG_VERSION")]);
    for way in ["shared", "static"] {
        let program = prefix.join(way);
        let mut command = Command::new("gcc");
        command.arg("-std=c11").arg(in_package("tests/c/cycles.c")).arg("-o").arg(&program);
        command.args(flags(&prefix, &["--cflags"]));
        if way == "shared" {
            command.args(flags(&prefix, &["--libs"])).arg(format!("-Wl,-rpath,{}/lib", prefix.display()));
        } else {
            // What pkg-config says beside the library itself, with the archive in its place.
            let archive = prefix.join("lib/libpgfollow.a").display().to_string();
            let swap = |f: String| if f == "-lpgfollow" { archive.clone() } else { f };
            command.args(flags(&prefix, &["--libs", "--static"]).into_iter().map(swap));
        }
        ran(way, &command.output().unwrap());
        ran(way, &Command::new(&program).arg("2").output().unwrap());
        let needed = Command::new("readelf").arg("-d").arg(&program).output();
        let needs = needed.is_ok_and(|o| String::from_utf8_lossy(&o.stdout).contains("[libpgfollow.so.0]"));
        assert_eq!(needs, way == "shared", "{way}");
    }
}

const CMAKE: &str = "cmake_minimum_required(VERSION 3.16)
project(user C)
find_package(pgfollow VERSION REQUIRED)
add_executable(shared SOURCE)
target_link_libraries(shared pgfollow::pgfollow)
add_executable(static SOURCE)
target_link_libraries(static pgfollow::static)
";

#[test]
fn a_program_is_built_by_cmake_from_a_tree_that_was_moved() {
    if !["gcc", "cmake", "make"].into_iter().all(has) {
        return;
    }
    let prefix = installed("cmake");
    let moved = prefix.with_file_name("moved");
    let _ = fs::remove_dir_all(&moved);
    fs::rename(&prefix, &moved).unwrap();
    let configure = |version: &str| {
        let source = moved.join(format!("user-{version}"));
        fs::create_dir_all(&source).unwrap();
        let cycles = in_package("tests/c/cycles.c").display().to_string();
        let text =
            CMAKE.replace("SOURCE", &cycles).replace("VERSION REQUIRED", &format!("{version} REQUIRED"));
        fs::write(source.join("CMakeLists.txt"), text).unwrap();
        let mut command = Command::new("cmake");
        command.arg("-S").arg(&source).arg("-B").arg(source.join("build"));
        command.arg(format!("-DCMAKE_PREFIX_PATH={}", moved.display()));
        (command.output().unwrap(), source.join("build"))
    };
    // The next version's programs must not be built against this one.
    assert!(!configure("99.0").0.status.success());
    let (output, build) = configure(env!("CARGO_PKG_VERSION"));
    ran("cmake", &output);
    ran("cmake --build", &Command::new("cmake").arg("--build").arg(&build).output().unwrap());
    for way in ["shared", "static"] {
        ran(way, &Command::new(build.join(way)).arg("2").output().unwrap());
    }
}
