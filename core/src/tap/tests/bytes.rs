//! Frames as bytes, for tests.

/// One frame.
pub(super) fn frame(tag: u8, body: &[u8]) -> Vec<u8> {
    let len = u32::try_from(body.len() + 4).expect("short enough");
    [&[tag][..], &len.to_be_bytes(), body].concat()
}

fn strings(parts: &[&str]) -> Vec<u8> {
    parts.iter().flat_map(|p| p.bytes().chain([0])).collect()
}

// The server's.

pub(super) fn auth(kind: i32, rest: &[u8]) -> Vec<u8> {
    frame(b'R', &[&kind.to_be_bytes(), rest].concat())
}

pub(super) fn param(name: &str, value: &str) -> Vec<u8> {
    frame(b'S', &strings(&[name, value]))
}

pub(super) fn key(pid: i32, secret: i32) -> Vec<u8> {
    frame(b'K', &[pid.to_be_bytes(), secret.to_be_bytes()].concat())
}

pub(super) fn ready(status: u8) -> Vec<u8> {
    frame(b'Z', &[status])
}

pub(super) fn tag(text: &str) -> Vec<u8> {
    frame(b'C', &strings(&[text]))
}

fn fields(severity: &str, code: &str, text: &str, routine: &str) -> Vec<u8> {
    let f = [
        format!("S{severity}"),
        format!("V{severity}"),
        format!("C{code}"),
        format!("M{text}"),
        format!("R{routine}"),
    ];
    [strings(&f.each_ref().map(String::as_str)), vec![0]].concat()
}

pub(super) fn error(severity: &str, code: &str, text: &str) -> Vec<u8> {
    frame(b'E', &fields(severity, code, text, "f"))
}

pub(super) fn notice(severity: &str, code: &str, text: &str, routine: &str) -> Vec<u8> {
    frame(b'N', &fields(severity, code, text, routine))
}

/// AuthenticationOk to ReadyForQuery, as a server of today sends it.
pub(super) fn welcome() -> Vec<u8> {
    [
        auth(0, b""),
        param("server_version", "18.0"),
        param("in_hot_standby", "off"),
        param("standard_conforming_strings", "on"),
        key(4242, 99),
        ready(b'I'),
    ]
    .concat()
}

// The client's.

pub(super) fn startup() -> Vec<u8> {
    frame(0, b"\0\x03\0\0user\0u\0\0")[1..].to_vec()
}

pub(super) fn query(text: &str) -> Vec<u8> {
    frame(b'Q', &strings(&[text]))
}

pub(super) fn parse(name: &str, text: &str) -> Vec<u8> {
    frame(b'P', &[strings(&[name, text]), vec![0, 0]].concat())
}

/// Bind with one parameter value, which looks like SQL to catch who reads it.
pub(super) fn bind(portal: &str, statement: &str) -> Vec<u8> {
    let value = b";COMMIT;\0";
    let mut body = strings(&[portal, statement]);
    body.extend_from_slice(&[0, 0, 0, 1]);
    body.extend_from_slice(&u32::try_from(value.len()).expect("short").to_be_bytes());
    body.extend_from_slice(value);
    body.extend_from_slice(&[0, 0]);
    frame(b'B', &body)
}

pub(super) fn execute(portal: &str) -> Vec<u8> {
    frame(b'E', &[strings(&[portal]), vec![0; 4]].concat())
}

pub(super) fn close(kind: u8, name: &str) -> Vec<u8> {
    frame(b'C', &[&[kind], strings(&[name]).as_slice()].concat())
}

pub(super) fn sync() -> Vec<u8> {
    frame(b'S', b"")
}

/// Bind, Execute and Sync of a prepared statement.
pub(super) fn run(statement: &str) -> Vec<u8> {
    [bind("", statement), execute(""), sync()].concat()
}

/// Parse and Sync.
pub(super) fn prepare(name: &str, text: &str) -> Vec<u8> {
    [parse(name, text), sync()].concat()
}
