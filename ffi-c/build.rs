//! Gives the shared library its SONAME. The number goes up with every change that breaks a program built before it.

fn main() {
    if std::env::var("CARGO_CFG_TARGET_OS").is_ok_and(|os| os == "linux") {
        println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libpgfollow.so.0");
    }
    println!("cargo::rerun-if-changed=build.rs");
}
