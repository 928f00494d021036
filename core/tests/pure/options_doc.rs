//! `docs/options.md` says what the table says. `UPDATE=1` writes it anew.

use std::fs;
use std::path::Path;

#[test]
fn the_options_page_is_not_stale() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/options.md");
    let made = pgfollow::config::options_markdown();
    if std::env::var_os("UPDATE").is_some() {
        fs::write(&path, &made).unwrap();
    }
    let found = fs::read_to_string(&path).unwrap_or_default();
    assert!(
        found == made,
        "docs/options.md is stale: UPDATE=1 cargo test -p pgfollow --test pure options_doc"
    );
}
