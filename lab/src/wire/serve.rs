//! The part of a scripted server that answers queries: enough of a backend for a driver to work against it.
//!
//! Frames in, bytes out; no socket, no waiting. Transaction status is tracked, values have one of three types, and
//! the questions that pgfollow asks by itself (role, term, set-up, ping) get the answers of the role that is played.

use std::collections::HashMap;

use bytes::{Buf, BytesMut};

use super::message::{Message, Row, Type, frame};
use super::own::{self, Facts};
use super::record::{Frame, Received, take_text};
use super::script::Answers;

/// How pgfollow's own questions (term, set-up) are answered. Role questions to a server whose script has a role are
/// always answered truly.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Own {
    /// As the role that is played would.
    #[default]
    Sensible,
    /// Like any other query: one row "1".
    OneRow,
    /// With an ERROR (42501), as where the login lacks the privilege.
    Refused,
}

/// What one statement is answered with.
enum Reply {
    Empty,
    Tag(String),
    Rows { row: Row, values: Vec<Vec<Option<String>>>, tag: String },
    Given(Vec<Message>),
}

/// The state of one session.
pub(super) struct Backend {
    pub(super) facts: Facts,
    own: Own,
    status: u8,
    statements: HashMap<String, String>,
    portals: HashMap<String, (String, bool)>,
    selects_of_1: u32,
    /// An error came in the extended protocol: everything up to Sync is skipped.
    skipping: bool,
}

impl Backend {
    pub(super) fn new(own: Own) -> Self {
        Self {
            facts: Facts::default(),
            own,
            status: b'I',
            statements: HashMap::new(),
            portals: HashMap::new(),
            selects_of_1: 0,
            skipping: false,
        }
    }

    /// The text that an Execute would run.
    pub(super) fn text_of_execute(&self, f: &Frame) -> Option<&str> {
        let portal = take_text(&mut f.body.clone())?;
        self.portals.get(&portal).map(|(text, _)| text.as_str())
    }

    /// Appends the answer to one frame. `true`: what was appended must go out now.
    pub(super) fn answer(&mut self, f: &Frame, answers: &Answers, out: &mut BytesMut) -> bool {
        let mut body = f.body.clone();
        match &f.received {
            Received::Query(text) => {
                self.simple(text, answers, out);
                return true;
            }
            Received::Other("Sync") => {
                self.skipping = false;
                self.ready(out);
                return true;
            }
            Received::Other("Flush") => return true,
            _ if self.skipping => {}
            Received::Parse { name, text } => {
                self.statements.insert(name.clone(), text.clone());
                frame(out, b'1', |_| {});
            }
            Received::Other("Bind") => {
                if let Some((portal, text, binary)) = self.bind(&mut body) {
                    self.portals.insert(portal, (text, binary));
                    frame(out, b'2', |_| {});
                } else {
                    self.fail("26000", "prepared statement does not exist", out);
                }
            }
            Received::Other("Describe") => self.describe(&mut body, answers, out),
            Received::Other("Execute") => self.execute(f, answers, out),
            Received::Other("Close") => frame(out, b'3', |_| {}),
            _ => {}
        }
        false
    }

    fn simple(&mut self, text: &str, answers: &Answers, out: &mut BytesMut) {
        if let Some(messages) = given(text, answers) {
            self.encode_given(messages, out);
            return;
        }
        for statement in own::statements(text) {
            let reply = self.reply(statement, answers, true);
            match reply {
                Reply::Empty => frame(out, b'I', |_| {}),
                Reply::Tag(tag) => Message::Command(tag).encode(out),
                Reply::Rows { row, values, tag } => {
                    row.describe(out);
                    values.iter().for_each(|v| row.data(out, v, false));
                    Message::Command(tag).encode(out);
                }
                Reply::Given(messages) => {
                    let whole = messages.iter().any(|m| matches!(m, Message::Ready(_)));
                    let failed = messages.iter().any(|m| matches!(m, Message::Error { .. }));
                    self.encode_given(&messages, out);
                    if whole {
                        return;
                    }
                    if failed {
                        // What stands behind a failed statement isn't run.
                        break;
                    }
                }
            }
        }
        self.ready(out);
    }

    fn encode_given(&mut self, messages: &[Message], out: &mut BytesMut) {
        for m in messages {
            match m {
                Message::Ready(status) => self.status = *status,
                Message::Error { .. } if self.status == b'T' => self.status = b'E',
                _ => {}
            }
            m.encode(out);
        }
    }

    fn bind(&self, body: &mut bytes::Bytes) -> Option<(String, String, bool)> {
        let portal = take_text(body)?;
        let text = self.statements.get(&take_text(body)?)?.clone();
        let formats = body.try_get_i16().ok()?;
        for _ in 0..formats {
            body.try_get_i16().ok()?;
        }
        for _ in 0..body.try_get_i16().ok()? {
            let length = usize::try_from(body.try_get_i32().ok()?).unwrap_or(0); // -1 is NULL
            if length > body.len() {
                return None;
            }
            body.advance(length);
        }
        let binary = body.try_get_i16().ok()? > 0 && body.try_get_i16().ok()? == 1;
        Some((portal, text, binary))
    }

    fn describe(&mut self, body: &mut bytes::Bytes, answers: &Answers, out: &mut BytesMut) {
        let what = body.try_get_u8().unwrap_or(b'S');
        let name = take_text(body).unwrap_or_default();
        let text = match what {
            b'P' => self.portals.get(&name).map(|(text, _)| text.clone()),
            _ => self.statements.get(&name).cloned(),
        };
        let Some(text) = text else {
            self.fail("26000", "nothing of that name to describe", out);
            return;
        };
        if what == b'S' {
            let params = own::parameters(&text);
            frame(out, b't', |b| {
                use bytes::BufMut;
                b.put_i16(params);
                (0..params).for_each(|_| b.put_i32(25)); // text
            });
        }
        let shape = match self.reply(&text, answers, false) {
            Reply::Rows { row, .. } => Some(row),
            Reply::Given(messages) => messages.iter().find_map(|m| match m {
                Message::Rows { column, values } => Some(Row::of(column, values)),
                _ => None,
            }),
            Reply::Empty | Reply::Tag(_) => None,
        };
        match shape {
            Some(row) => row.describe(out),
            None => frame(out, b'n', |_| {}),
        }
    }

    fn execute(&mut self, f: &Frame, answers: &Answers, out: &mut BytesMut) {
        let portal = take_text(&mut f.body.clone()).unwrap_or_default();
        let Some((text, binary)) = self.portals.get(&portal).cloned() else {
            self.fail("34000", "portal does not exist", out);
            return;
        };
        match self.reply(&text, answers, true) {
            Reply::Empty => frame(out, b'I', |_| {}),
            Reply::Tag(tag) => Message::Command(tag).encode(out),
            Reply::Rows { row, values, tag } => {
                values.iter().for_each(|v| row.data(out, v, binary));
                Message::Command(tag).encode(out);
            }
            Reply::Given(messages) => {
                for m in &messages {
                    match m {
                        Message::Rows { column, values } => {
                            let row = Row::of(column, values);
                            values.iter().for_each(|v| row.data(out, &[Some(v.clone())], binary));
                        }
                        // ReadyForQuery answers Sync, not Execute.
                        Message::Ready(status) => self.status = *status,
                        Message::Error { .. } => {
                            self.skipping = true;
                            m.encode(out);
                        }
                        _ => m.encode(out),
                    }
                }
            }
        }
    }

    /// The answer to one statement. `run`: it is executed, not only described.
    fn reply(&mut self, text: &str, answers: &Answers, run: bool) -> Reply {
        if let Some(messages) = given(text, answers) {
            return Reply::Given(messages.to_vec());
        }
        if own::is_ours(text) {
            return self.own_reply(text, answers);
        }
        if own::same(text, "SELECT 1") {
            let nth = self.selects_of_1 + 1;
            if run {
                self.selects_of_1 = nth;
            }
            if let (2, Some(messages)) = (nth, &answers.second) {
                return Reply::Given(messages.clone());
            }
        }
        let verb = own::verb(text);
        let tag = match verb.as_str() {
            "BEGIN" | "START" => {
                self.turn(run, b'T');
                if verb == "BEGIN" { "BEGIN" } else { "START TRANSACTION" }
            }
            "COMMIT" | "END" => {
                let failed = self.status == b'E';
                self.turn(run, b'I');
                if failed { "ROLLBACK" } else { "COMMIT" }
            }
            "ROLLBACK" if own::words(text).any(|w| w == "TO") => {
                self.turn(run, b'T');
                "ROLLBACK"
            }
            "ROLLBACK" | "ABORT" => {
                self.turn(run, b'I');
                "ROLLBACK"
            }
            "INSERT" => "INSERT 0 1",
            "UPDATE" => "UPDATE 1",
            "DELETE" => "DELETE 1",
            "SET" | "RESET" | "LISTEN" | "UNLISTEN" | "NOTIFY" | "SAVEPOINT" | "RELEASE" | "DISCARD" => {
                return Reply::Tag(verb);
            }
            "CREATE" => "CREATE TABLE",
            "DROP" => "DROP TABLE",
            _ => return one_row(),
        };
        Reply::Tag(tag.to_owned())
    }

    fn own_reply(&self, text: &str, answers: &Answers) -> Reply {
        let mut facts = self.facts.clone();
        if let Some(role) = answers.role {
            facts.play(role);
        }
        let told = answers.role.is_some() && own::asks_role(text);
        if own::words(text).next().is_none() {
            return Reply::Empty;
        }
        if matches!(own::verb(text).as_str(), "SET" | "RESET") {
            return Reply::Tag("SET".to_owned());
        }
        if self.own == Own::Refused && !told {
            let text = "permission denied".to_owned();
            return Reply::Given(vec![Message::Error {
                severity: "ERROR".into(),
                code: "42501".into(),
                text,
            }]);
        }
        if told || (self.own == Own::Sensible && facts.known()) {
            let (row, values) = facts.evaluate(text);
            let tag = if own::verb(text) == "SHOW" { "SHOW" } else { "SELECT 1" };
            return Reply::Rows { row, values: vec![values], tag: tag.to_owned() };
        }
        one_row()
    }

    fn turn(&mut self, run: bool, status: u8) {
        if run {
            self.status = status;
        }
    }

    fn fail(&mut self, code: &str, text: &str, out: &mut BytesMut) {
        self.skipping = true;
        if self.status == b'T' {
            self.status = b'E';
        }
        let error = Message::Error { severity: "ERROR".into(), code: code.into(), text: text.into() };
        error.encode(out);
    }

    fn ready(&self, out: &mut BytesMut) {
        Message::Ready(self.status).encode(out);
    }
}

fn one_row() -> Reply {
    let row = Row(vec![("?column?".to_owned(), Type::Int4)]);
    Reply::Rows { row, values: vec![vec![Some("1".to_owned())]], tag: "SELECT 1".to_owned() }
}

fn given<'a>(text: &str, answers: &'a Answers) -> Option<&'a [Message]> {
    answers.given.iter().find(|(t, _)| own::same(t, text)).map(|(_, m)| m.as_slice())
}
