//! The man pages: made from the header's comments, a page for each group of functions. `UPDATE=1` writes them anew.

use std::fmt::Write;
use std::fs;
use std::process::Command;

use crate::build::{folder, in_package};

/// Page, what it is about, and the beginnings of its functions' names.
const PAGES: [(&str, &str, &[&str]); 8] = [
    ("pgf_connector", "watch the hosts of a connection string", &["pgf_connector_", "pgf_config_json"]),
    ("pgf_topology", "what is known of the hosts", &["pgf_topology_json", "pgf_report_json", "pgf_health"]),
    ("pgf_error", "what went wrong", &["pgf_error_"]),
    ("pgf_event", "what happens to the hosts", &["pgf_event_", "pgf_next_event"]),
    ("pgf_classify", "what a failure means for the work", &["pgf_classify", "pgf_check_outcome"]),
    (
        "pgf_target",
        "where a driver is to dial, and its sockets under guard",
        &["pgf_locate", "pgf_op_", "pgf_target_", "pgf_guard", "pgf_feed"],
    ),
    ("pgf_text", "texts that a call gave", &["pgf_text_"]),
    ("pgf_fork", "forks, and the library's version", &["pgf_before_fork", "pgf_after_fork", "pgf_version"]),
];

/// The head and foot of every page: the day on which the pages' form was changed last, for the pages must not differ from
/// day to day.
const DATE: &str = "December 1, 2026";

/// A function of the header, or a structure.
struct Entry {
    comment: Vec<String>,
    declaration: String,
}

impl Entry {
    fn function(&self) -> Option<(&str, &str, Vec<&str>)> {
        let (head, parameters) = self.declaration.strip_suffix(");")?.split_once('(')?;
        let at = head.rfind(|c: char| !c.is_alphanumeric() && c != '_')? + 1;
        Some((head[..at].trim(), &head[at..], parameters.split(',').map(str::trim).collect()))
    }
}

/// Every declaration with the comment before it.
fn entries(header: &str) -> Vec<Entry> {
    let (mut all, mut comment, mut open) = (Vec::new(), Vec::new(), String::new());
    for line in header.lines() {
        if open.is_empty() {
            if let Some(text) = line.strip_prefix("//") {
                comment.push(text.trim().to_owned());
                continue;
            }
            if line.is_empty() || line.starts_with(['#', ' ', '}', '/']) || line.starts_with("extern") {
                comment.clear();
                continue;
            }
        }
        open = format!("{open} {}", line.trim()).trim().to_owned();
        let ends = if open.contains('{') { line.starts_with('}') } else { line.ends_with(';') };
        if ends {
            let declaration = std::mem::take(&mut open);
            all.push(Entry { comment: std::mem::take(&mut comment), declaration });
        }
    }
    all
}

/// A text for mdoc: each sentence on a line of its own, and nothing that would be read as a macro.
fn text(out: &mut String, lines: &[String]) {
    for (n, paragraph) in lines.join("\n").split("\n\n").enumerate() {
        if n > 0 {
            out.push_str(".Pp\n");
        }
        let whole = paragraph.replace('\n', " ").replace('\\', "\\e").replace('`', "");
        for sentence in whole.replace(". ", ".\n").replace(": ", ":\n").lines() {
            let mut line = String::new();
            for word in sentence.split_whitespace() {
                if !line.is_empty() && line.len() + word.len() >= 78 {
                    writeln!(out, "{}", std::mem::take(&mut line)).unwrap();
                }
                let space = if line.is_empty() { "" } else { " " };
                let guard = if line.is_empty() && word.starts_with(['.', '\'']) { "\\&" } else { "" };
                write!(line, "{space}{guard}{word}").unwrap();
            }
            writeln!(out, "{line}").unwrap();
        }
    }
}

fn page(name: &str, about: &str, functions: &[&Entry]) -> String {
    let names: Vec<_> = functions.iter().map(|e| e.function().unwrap().1).collect();
    let mut out = format!(
        ".\\\" Generated from the comments of include/pgfollow.h\n.Dd {DATE}\n.Dt {} 3\n.Os\n.Sh NAME\n",
        name.to_uppercase()
    );
    for (n, function) in names.iter().enumerate() {
        let comma = if n + 1 < names.len() { " ," } else { "" };
        writeln!(out, ".Nm {function}{comma}").unwrap();
    }
    writeln!(out, ".Nd {about}\n.Sh SYNOPSIS\n.In pgfollow.h").unwrap();
    for entry in functions {
        let (returned, name, parameters) = entry.function().unwrap();
        writeln!(out, ".Ft {returned:?}\n.Fo {name}").unwrap();
        for parameter in parameters {
            writeln!(out, ".Fa \"{}\"", parameter.replace("struct ", "")).unwrap();
        }
        out.push_str(".Fc\n");
    }
    out.push_str(".Sh DESCRIPTION\nThe conventions of all functions (ownership, strings, errors, threads) stand at\nthe head of\n");
    out.push_str(".In pgfollow.h .\n.Bl -tag -width Ds\n");
    for entry in functions {
        writeln!(out, ".It Fn {}", entry.function().unwrap().1).unwrap();
        text(&mut out, &entry.comment);
    }
    out.push_str(".El\n");
    out
}

fn pages() -> Vec<(String, String)> {
    let header = fs::read_to_string(in_package("../include/pgfollow.h")).unwrap();
    let all = entries(&header);
    let functions: Vec<_> = all.iter().filter(|e| e.function().is_some()).collect();
    let of = |entry: &Entry, prefixes: &[&str]| {
        let name = entry.function().unwrap().1;
        prefixes.iter().any(|p| name.starts_with(p))
    };
    let symbols = fs::read_to_string(in_package("../include/pgfollow.symbols")).unwrap();
    let exported = symbols.lines().filter(|l| l.starts_with("pgf_")).count();
    assert_eq!(functions.len(), exported, "functions in the header, and exported symbols");
    for entry in &functions {
        let count = PAGES.iter().filter(|p| of(entry, p.2)).count();
        assert_eq!(count, 1, "{} belongs on one page", entry.declaration);
        assert!(!entry.comment.is_empty(), "{} has no comment", entry.declaration);
    }
    let one = |(name, about, prefixes): (&str, &str, &[&str])| {
        let its: Vec<_> = functions.iter().filter(|e| of(e, prefixes)).copied().collect();
        (format!("man/{name}.3"), page(name, about, &its))
    };
    PAGES.into_iter().map(one).collect()
}

#[test]
fn no_function_lacks_its_place_in_the_man_pages_and_none_is_stale() {
    for (path, made) in pages() {
        let path = in_package(&path);
        if std::env::var_os("UPDATE").is_some() {
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(&path, &made).unwrap();
        }
        let found = fs::read_to_string(&path).unwrap_or_default();
        let how = "make gen";
        assert!(found == made, "{} is stale: {how}", path.display());
    }
}

#[test]
fn the_man_pages_are_without_fault() {
    // It has no --version.
    if Command::new("mandoc").arg("/dev/null").output().is_err() {
        return pgfollow_lab::skipped("mandoc is not installed");
    }
    let mut command = Command::new("mandoc");
    command.args(["-T", "lint"]);
    for (path, made) in pages() {
        let copy = folder("man").join(path.replace('/', "-"));
        fs::write(&copy, made).unwrap();
        command.arg(copy);
    }
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.is_empty(), "{said}");
}
