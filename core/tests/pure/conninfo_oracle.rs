//! Our parser against the installed libpq's own `PQconninfoParse`: random strings of both forms must be accepted or
//! refused alike, with the same values. `PGFOLLOW_LIBPQ` names another library file. Without a libpq the tests say
//! SKIPPED and prove nothing.
#![expect(unsafe_code, reason = "libpq is a C library, loaded at run time so that nothing links it")]

use std::collections::BTreeMap;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::io::Write;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use pgfollow::config::OPTIONS;
use pgfollow::conninfo;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestCaseResult};

/// One entry of the array that `PQconninfoParse` returns (`libpq-fe.h`, `PQconninfoOption`).
#[repr(C)]
struct RawOption {
    keyword: *const c_char,
    envvar: *const c_char,
    compiled: *const c_char,
    val: *const c_char,
    label: *const c_char,
    dispchar: *const c_char,
    dispsize: c_int,
}

type Parse = unsafe extern "C" fn(*const c_char, *mut *mut c_char) -> *mut RawOption;
type Free = unsafe extern "C" fn(*mut RawOption);
type FreeText = unsafe extern "C" fn(*mut c_void);
type Version = unsafe extern "C" fn() -> c_int;

struct Libpq {
    parse: Parse,
    free: Free,
    free_text: FreeText,
    version: c_int,
}

/// What libpq says of one keyword.
struct Known {
    value: Option<Vec<u8>>,
    variable: Option<String>,
}

type Values = BTreeMap<String, Vec<u8>>;

impl Libpq {
    fn load() -> Option<Self> {
        let file = std::env::var("PGFOLLOW_LIBPQ").unwrap_or_else(|_| "libpq.so.5".to_owned());
        let file = CString::new(file).unwrap();
        // SAFETY: the name is a C string; loading libpq runs no code of ours. It is never unloaded.
        let handle = unsafe { libc::dlopen(file.as_ptr(), libc::RTLD_NOW) };
        if handle.is_null() {
            return None;
        }
        let symbol = |name: &CStr| {
            // SAFETY: the handle is valid, and the name is a C string.
            let address = unsafe { libc::dlsym(handle, name.as_ptr()) };
            assert!(!address.is_null(), "libpq has no {name:?}");
            address
        };
        // SAFETY: each symbol has the type that libpq-fe.h declares for it.
        unsafe {
            let version = std::mem::transmute::<*mut c_void, Version>(symbol(c"PQlibVersion"));
            Some(Self {
                parse: std::mem::transmute::<*mut c_void, Parse>(symbol(c"PQconninfoParse")),
                free: std::mem::transmute::<*mut c_void, Free>(symbol(c"PQconninfoFree")),
                free_text: std::mem::transmute::<*mut c_void, FreeText>(symbol(c"PQfreemem")),
                version: version(),
            })
        }
    }

    /// Every keyword that the library knows; or its error.
    fn options(&self, text: &str) -> Result<BTreeMap<String, Known>, String> {
        let text = CString::new(text).unwrap();
        let mut message = std::ptr::null_mut();
        // SAFETY: both pointers are valid for the call.
        let array = unsafe { (self.parse)(text.as_ptr(), &raw mut message) };
        if array.is_null() {
            assert!(!message.is_null(), "libpq ran out of memory");
            // SAFETY: libpq gave a C string, which is freed once, after its copy was made.
            let copy = unsafe { CStr::from_ptr(message) }.to_string_lossy().into_owned();
            // SAFETY: as above.
            unsafe { (self.free_text)(message.cast()) };
            return Err(copy);
        }
        let mut out = BTreeMap::new();
        let mut at = array;
        // SAFETY: the array ends with an entry without a keyword; texts live until it is freed below.
        unsafe {
            while !(*at).keyword.is_null() {
                let name = CStr::from_ptr((*at).keyword).to_str().unwrap().to_owned();
                let value = (!(*at).val.is_null()).then(|| CStr::from_ptr((*at).val).to_bytes().to_vec());
                let variable = (!(*at).envvar.is_null())
                    .then(|| CStr::from_ptr((*at).envvar).to_str().unwrap().to_owned());
                out.insert(name, Known { value, variable });
                at = at.add(1);
            }
            (self.free)(array);
        }
        Ok(out)
    }

    fn parse(&self, text: &str) -> Result<Values, String> {
        Ok(self.options(text)?.into_iter().filter_map(|(k, v)| Some((k, v.value?))).collect())
    }
}

/// To the real standard error: the harness hides what a passing test prints.
fn say(text: &str) {
    let _ = writeln!(std::io::stderr(), "conninfo_oracle: {text}");
}

/// The library and the keywords that both it and we know; `None`: there is no library.
fn libpq() -> Option<&'static (Libpq, Vec<&'static str>)> {
    static LIBPQ: OnceLock<Option<(Libpq, Vec<&'static str>)>> = OnceLock::new();
    let found = LIBPQ.get_or_init(|| {
        let libpq = Libpq::load()?;
        let known = libpq.options("").unwrap();
        let both = OPTIONS.iter().map(|r| r.name).filter(|n| known.contains_key(*n)).collect::<Vec<_>>();
        let lacks: Vec<_> =
            OPTIONS.iter().filter(|r| !r.own && !both.contains(&r.name)).map(|r| r.name).collect();
        say(&format!("libpq {}: {} keywords compared, it lacks {lacks:?}", libpq.version, both.len()));
        Some((libpq, both))
    });
    found.as_ref()
}

/// The same for a test, which counts as skipped without it.
fn libpq_or_skip() -> Option<&'static (Libpq, Vec<&'static str>)> {
    let found = libpq();
    if found.is_none() {
        pgfollow_lab::skipped("no libpq is installed, so nothing was compared");
    }
    found
}

fn compare(text: &str, compared: &AtomicU32, accepted: &AtomicU32) -> TestCaseResult {
    let (libpq, both) = libpq().unwrap();
    // A keyword that only we know is accepted by us alone.
    prop_assume!(!OPTIONS.iter().any(|r| !both.contains(&r.name) && text.contains(r.name)));
    // libpq 17 and older keep blanks in a URI.
    let uri = text.starts_with("postgres");
    prop_assume!(!(uri && text.contains(' ') && libpq.version < 180_000));
    compared.fetch_add(1, Ordering::Relaxed);
    match (libpq.parse(text), conninfo::parse(text)) {
        (Err(_), Err(_)) => Ok(()),
        (Ok(theirs), Ok(ours)) => {
            let ours: Values = ours.into_iter().map(|(k, v)| (k.to_owned(), v.into_bytes())).collect();
            prop_assert_eq!(theirs, ours, "{}", text);
            accepted.fetch_add(1, Ordering::Relaxed);
            Ok(())
        }
        // We carry text; bytes that aren't are refused by name.
        (Ok(theirs), Err(e)) if e.message().contains("UTF-8") => {
            prop_assert!(!decodes_to_text(text), "{text:?}: libpq says {theirs:?}, we say {e}");
            Ok(())
        }
        (theirs, ours) => {
            prop_assert!(false, "{text:?}: libpq says {theirs:?}, we say {ours:?}");
            Ok(())
        }
    }
}

/// Whether a URI stays UTF-8 when its escapes are decoded.
fn decodes_to_text(uri: &str) -> bool {
    let mut parts = uri.split('%');
    let mut bytes = parts.next().unwrap_or_default().as_bytes().to_vec();
    for part in parts {
        bytes.extend(part.get(..2).and_then(|hex| u8::from_str_radix(hex, 16).ok()));
        bytes.extend(part.as_bytes().iter().skip(2));
    }
    String::from_utf8(bytes).is_ok()
}

fn run(strategy: impl Strategy<Value = String>) {
    if libpq_or_skip().is_none() {
        return;
    }
    let config =
        Config { cases: 4_000, max_global_rejects: 100_000, failure_persistence: None, ..Config::default() };
    let (compared, accepted) = (AtomicU32::new(0), AtomicU32::new(0));
    proptest!(config, |(text in strategy)| compare(&text, &compared, &accepted)?);
    let (compared, accepted) = (compared.into_inner(), accepted.into_inner());
    say(&format!("{compared} random strings compared, {accepted} of them valid"));
    // PROPTEST_CASES may ask for a handful, which says nothing about the generator.
    assert!(
        compared < 100 || accepted * 20 >= compared,
        "too few strings are valid: the generator proves too little"
    );
}

/// A keyword: mostly a real one.
fn keyword() -> impl Strategy<Value = String> {
    let known = libpq().map_or_else(|| vec!["host"], |l| l.1.clone());
    prop_oneof![
        20 => proptest::sample::select(known).prop_map(str::to_owned),
        2 => Just("requiressl".to_owned()),
        1 => Just("ssl".to_owned()),
        1 => "[a-z_]{0,6}",
    ]
}

fn one_of(texts: &'static [&'static str]) -> impl Strategy<Value = String> {
    proptest::sample::select(texts).prop_map(str::to_owned)
}

fn joined(
    part: impl Strategy<Value = String>,
    count: std::ops::Range<usize>,
) -> impl Strategy<Value = String> {
    proptest::collection::vec(part, count).prop_map(|v| v.concat())
}

const BLANKS: &[&str] = &["", "", "", " ", "  ", "\t", "\n", "\u{b}", "\u{c}", "\r", "\u{a0}"];

#[test]
fn keyword_value_strings_are_read_as_libpq_reads_them() {
    let piece = one_of(&[
        "a", "1", ",", "/", "@", ":", "=", "\\", "\\\\", "\\'", "\\ ", "'", "é", "%20", "%", "&", "true", " ",
    ]);
    let inner = joined(one_of(&["a", "1", ",", " ", "=", "\\'", "\\\\", "\\x", "é", "\n"]), 0..6);
    let value = prop_oneof![
        4 => "[a-z0-9,./:@=-]{0,8}",
        3 => inner.prop_map(|v| format!("'{v}'")),
        3 => joined(piece, 0..6),
    ];
    let pair =
        (keyword(), one_of(BLANKS), one_of(&["=", "=", "=", "=", "=", "=", "=", ""]), one_of(BLANKS), value);
    let pair = (pair, one_of(&[" ", " ", " ", " ", "\n", "", "\u{b}"]))
        .prop_map(|((k, b1, eq, b2, v), end)| format!("{k}{b1}{eq}{b2}{v}{end}"));
    run((one_of(BLANKS), joined(pair, 0..5)).prop_map(|(b, pairs)| format!("{b}{pairs}")));
}

#[test]
fn uris_are_read_as_libpq_reads_them() {
    let encoded = || {
        one_of(&[
            "a", "b1", ".", "-", "%2F", "%2c", "%40", "%C3%A9", "é", "%ff", "%", "%0", "%00", " ", "+", "'",
        ])
    };
    let text = || joined(encoded(), 0..4);
    let credentials = prop_oneof![
        3 => Just(String::new()),
        2 => (text(), text()).prop_map(|(u, p)| format!("{u}:{p}@")),
        1 => text().prop_map(|u| format!("{u}@")),
        1 => joined(one_of(&["a", ":", "@", "?", "[", "%"]), 0..4).prop_map(|u| format!("{u}@")),
    ];
    let host = prop_oneof![
        4 => "[a-z0-9.]{0,5}",
        2 => one_of(&["[::1]", "[fe80::1%25eth0]", "[]", "[::1", "[::1]x", "::1", "[a]b"]),
        2 => text(),
    ];
    let port = prop_oneof![3 => Just(String::new()), 2 => "[0-9]{0,5}".prop_map(|p| format!(":{p}")), 1 => text().prop_map(|p| format!(":{p}"))];
    let hosts = proptest::collection::vec((host, port).prop_map(|(h, p)| format!("{h}{p}")), 0..4)
        .prop_map(|v| v.join(","));
    let path = prop_oneof![2 => Just(String::new()), 3 => text().prop_map(|d| format!("/{d}")), 1 => Just("/a/b".to_owned())];
    let value = prop_oneof![4 => text(), 1 => one_of(&["true", "a=b", "1", "0"])];
    let parameter = (keyword(), one_of(&["=", "=", "=", "=", "=", "=", "=", ""]), value)
        .prop_map(|(k, eq, v)| format!("{k}{eq}{v}"));
    let query = proptest::collection::vec(parameter, 0..4).prop_map(|v| v.join("&"));
    let query = (query, one_of(&["?", "?", "?", "", "?&"]), one_of(&["", "", "", "&"]))
        .prop_map(|(q, mark, end)| if q.is_empty() { mark } else { format!("{mark}{q}{end}") });
    let scheme = one_of(&["postgresql://", "postgres://"]);
    run((scheme, credentials, hosts, path, query).prop_map(|(s, c, h, p, q)| format!("{s}{c}{h}{p}{q}")));
}

#[test]
fn noise_is_read_as_libpq_reads_it() {
    let noise = one_of(&[
        "postgresql://",
        "postgres://",
        "postgresql:/",
        "host",
        "port",
        "user",
        "=",
        "=",
        " ",
        "'",
        "\\",
        ":",
        "/",
        "@",
        "?",
        "&",
        "%",
        "%41",
        ",",
        "[",
        "]",
        "1",
        "a",
        "é",
        "\t",
    ]);
    run(joined(noise, 0..12));
}

#[test]
fn every_keyword_of_the_installed_libpq_is_known_with_its_variable() {
    let Some((libpq, _)) = libpq_or_skip() else { return };
    let known = libpq.options("").unwrap();
    for (name, theirs) in &known {
        match OPTIONS.iter().find(|r| !r.own && r.name == name) {
            Some(row) => assert_eq!(row.variable, theirs.variable.as_deref(), "{name}"),
            // libpq 19 brings more; our list is libpq 18's.
            None => assert!(libpq.version >= 190_000, "libpq {} has {name}, which we lack", libpq.version),
        }
    }
}
