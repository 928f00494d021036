//! One accepted connection: carries out the steps of its script and records what the client sends.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::{Buf, BytesMut};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::LazyConfigAcceptor;
use tokio_rustls::server::TlsStream;

use super::auth::{Exchange, Next};
use super::message::{Message, big_error, encode_all};
use super::own;
use super::record::{End, Frame, Received, Seen, TlsSeen, typed, untyped};
use super::script::{Answers, Login, Script, Step};
use super::serve::Backend;
use super::{Options, Shared};

/// The largest message taken from a client; anything that claims more isn't the protocol.
const LARGEST: usize = 64 << 20;

enum Stream {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

impl Stream {
    async fn read(&mut self, buf: &mut BytesMut) -> io::Result<usize> {
        match self {
            Self::Plain(s) => s.read_buf(buf).await,
            Self::Tls(s) => s.read_buf(buf).await,
        }
    }

    async fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        match self {
            Self::Plain(s) => s.write_all(bytes).await,
            Self::Tls(s) => {
                s.write_all(bytes).await?;
                s.flush().await
            }
        }
    }

    async fn shutdown(&mut self) -> io::Result<()> {
        match self {
            Self::Plain(s) => s.shutdown().await,
            Self::Tls(s) => s.shutdown().await,
        }
    }

    fn tcp(&self) -> &TcpStream {
        match self {
            Self::Plain(s) => s,
            Self::Tls(s) => s.get_ref().0,
        }
    }
}

pub(super) struct Conn {
    /// `None` after `close`, `rst` and a failed handshake.
    stream: Option<Stream>,
    buf: BytesMut,
    /// A StartupMessage came: frames have a type byte from now on.
    started: bool,
    /// A statement that isn't ours was left unanswered: so is everything up to its Sync.
    muted: bool,
    user: String,
    backend: Backend,
    options: Arc<Options>,
    shared: Arc<Shared>,
    index: usize,
}

impl Conn {
    pub(super) fn new(stream: TcpStream, options: Arc<Options>, shared: Arc<Shared>, index: usize) -> Self {
        let mut backend = Backend::new(options.own);
        if let Ok(address) = stream.local_addr() {
            backend.facts.live_at(address);
        }
        Self {
            stream: Some(Stream::Plain(stream)),
            buf: BytesMut::new(),
            started: false,
            muted: false,
            user: String::new(),
            backend,
            options,
            shared,
            index,
        }
    }

    /// Runs the script to its end, or to the client's.
    pub(super) async fn run(mut self, script: Script) {
        let mut end = End::Script;
        for step in &script.0 {
            if let Err(e) = Box::pin(self.step(step)).await {
                end = e;
                break;
            }
        }
        drop(self.stream.take());
        self.seen(|s| {
            s.end = Some(end);
            s.ended_at = Some(Instant::now());
        });
    }

    async fn step(&mut self, step: &Step) -> Result<(), End> {
        match step {
            Step::Startup => self.startup().await,
            Step::Send(messages) => self.send(messages).await,
            Step::Repeat(n, messages) => {
                for _ in 0..*n {
                    self.send(messages).await?;
                }
                Ok(())
            }
            Step::Drip(messages, pause) => self.drip(messages, *pause).await,
            Step::Sleep(for_) => self.wait(*for_, true).await,
            Step::Silence(for_) => self.wait(*for_, false).await,
            Step::Read => self.read().await.map(|_| ()),
            Step::Serve(answers) => self.serve(answers, None).await,
            Step::ServeUntil(text, answers) => self.serve(answers, Some(text)).await,
            Step::Record => loop {
                self.read().await?;
            },
            Step::Fin => {
                self.stream.as_mut().ok_or(End::Script)?.shutdown().await.map_err(broken)?;
                loop {
                    self.read().await?;
                }
            }
            Step::Rst => {
                let stream = self.stream.take().ok_or(End::Script)?;
                stream.tcp().set_zero_linger().map_err(broken)?;
                Err(End::Script)
            }
            Step::Close => Err(End::Script),
            Step::SslReply(byte) => {
                self.tls_request().await?;
                self.write(&[*byte]).await
            }
            Step::SslReplyError { code, text } => {
                self.tls_request().await?;
                self.send(&[Message::fatal(code, text)]).await
            }
            Step::SslReplyThenStray(byte) => {
                self.tls_request().await?;
                let mut out = BytesMut::from(&[*byte][..]);
                out.extend_from_slice(&encode_all(&[Message::Auth(0), Message::fatal("28000", "stray")]));
                self.write(&out).await
            }
            Step::TlsHandshake => self.tls_handshake().await,
            Step::OnSyncAfter { kinds, messages } => self.on_sync_after(kinds, messages).await,
            Step::Login(login) => self.login(login).await,
        }
    }

    async fn startup(&mut self) -> Result<(), End> {
        loop {
            match self.read().await?.received {
                Received::SslRequest | Received::GssEncRequest => self.write(b"N").await?,
                Received::StartupMessage { .. } => return Ok(()),
                // A cancel request and whatever isn't the protocol end the connection, as in a real server.
                _ => return Err(End::Script),
            }
        }
    }

    async fn tls_request(&mut self) -> Result<(), End> {
        loop {
            match self.read().await?.received {
                Received::GssEncRequest => self.write(b"N").await?,
                Received::SslRequest => return Ok(()),
                _ => return Err(End::Script),
            }
        }
    }

    async fn tls_handshake(&mut self) -> Result<(), End> {
        let identity = self.options.tls.clone().ok_or(End::TlsFailed)?;
        let Some(Stream::Plain(tcp)) = self.stream.take() else { return Err(End::TlsFailed) };
        let patience = self.options.patience;
        let accept = async {
            let hello = LazyConfigAcceptor::new(rustls::server::Acceptor::default(), tcp).await?;
            let sni = hello.client_hello().server_name().map(str::to_owned);
            self.seen(|s| s.hello_sni.clone_from(&sni));
            hello.into_stream(identity.config).await.map(|stream| (stream, sni))
        };
        let (stream, sni) =
            timeout(patience, accept).await.map_err(|_| End::Patience)?.map_err(|_| End::TlsFailed)?;
        let session = stream.get_ref().1;
        let tls = TlsSeen {
            sni,
            alpn: session.alpn_protocol().map(|p| String::from_utf8_lossy(p).into_owned()),
            client_certificate: session.peer_certificates().is_some(),
        };
        self.seen(|s| s.tls = Some(tls));
        self.stream = Some(Stream::Tls(Box::new(stream)));
        Ok(())
    }

    async fn login(&mut self, login: &Login) -> Result<(), End> {
        let identity = self.options.tls.clone().filter(|_| matches!(self.stream, Some(Stream::Tls(_))));
        let user = self.user.clone();
        let end_point = identity.as_ref().map(|i| i.end_point.as_slice());
        let (mut exchange, request) = Exchange::begin(login, &user, end_point);
        self.send(&[request]).await?;
        loop {
            let frame = self.read().await?;
            let Received::Password(body) = frame.received else { return Err(End::Script) };
            match exchange.step(body) {
                Next::Continue(out) => self.write(&out).await?,
                Next::Done(out) => return self.write(&out).await,
                Next::Held => return Ok(()),
                Next::Refused => {
                    let text = format!("password authentication failed for user \"{user}\"");
                    self.send(&[Message::fatal("28P01", &text)]).await?;
                    return Err(End::Script);
                }
            }
        }
    }

    async fn send(&mut self, messages: &[Message]) -> Result<(), End> {
        messages.iter().for_each(|m| self.backend.facts.note(m));
        if let [Message::ErrorBig(n)] = messages {
            return self.send_big(*n).await;
        }
        self.write(&encode_all(messages)).await
    }

    /// In pieces, so that a test that watches the process's memory sees the client's share alone.
    async fn send_big(&mut self, mut n: usize) -> Result<(), End> {
        let (head, tail) = big_error(n);
        self.write(&head).await?;
        let piece = vec![b'x'; 1 << 14];
        while n > 0 {
            let some = n.min(piece.len());
            self.write(&piece[..some]).await?;
            n -= some;
        }
        self.write(&tail).await
    }

    async fn drip(&mut self, messages: &[Message], pause: Duration) -> Result<(), End> {
        messages.iter().for_each(|m| self.backend.facts.note(m));
        for byte in encode_all(messages) {
            self.write(&[byte]).await?;
            tokio::time::sleep(pause).await;
        }
        Ok(())
    }

    /// Lets time pass while recording; the client's end is the script's end.
    async fn wait(&mut self, for_: Duration, answer_ours: bool) -> Result<(), End> {
        let until = tokio::time::Instant::now() + for_;
        loop {
            // Reading is cancel-safe: what has come stays in the buffer.
            let frame = match tokio::time::timeout_at(until, self.read()).await {
                Err(_) => return Ok(()),
                Ok(frame) => frame?,
            };
            if answer_ours && self.is_ours(&frame) {
                let mut out = BytesMut::new();
                self.backend.answer(&frame, &Answers::default(), &mut out);
                self.write(&out).await?;
            }
        }
    }

    fn is_ours(&mut self, frame: &Frame) -> bool {
        match frame.received.text() {
            Some(text) => {
                let ours = own::is_ours(text);
                // A simple query has no Sync that could end the muting.
                self.muted = !ours && frame.received.kind() == "Parse";
                ours
            }
            None => {
                let muted = self.muted;
                self.muted &= frame.received.kind() != "Sync";
                !muted
            }
        }
    }

    async fn serve(&mut self, answers: &Answers, until: Option<&str>) -> Result<(), End> {
        let mut out = BytesMut::new();
        loop {
            let frame = self.read().await?;
            let text = match &frame.received {
                Received::Query(text) => Some(text.as_str()),
                Received::Other("Execute") => self.backend.text_of_execute(&frame),
                Received::Other("Terminate") => return Err(End::ClientClosed),
                _ => None,
            };
            if let (Some(text), Some(until)) = (text, until)
                && own::same(text, until)
            {
                return Ok(());
            }
            if self.backend.answer(&frame, answers, &mut out) {
                self.write(&out.split()).await?;
            }
        }
    }

    async fn on_sync_after(&mut self, kinds: &[String], messages: &[Message]) -> Result<(), End> {
        let mut out = BytesMut::new();
        let mut since_sync: Vec<&'static str> = Vec::new();
        loop {
            let frame = self.read().await?;
            let kind = frame.received.kind();
            if kind == "Sync" && kinds.iter().all(|k| since_sync.contains(&k.as_str())) {
                return self.send(messages).await;
            }
            match kind {
                "Sync" => since_sync.clear(),
                "Terminate" => return Err(End::ClientClosed),
                // Our own statements are answered and don't count.
                "Parse" if frame.received.text().is_some_and(own::is_ours) => {}
                _ => since_sync.push(kind),
            }
            if self.backend.answer(&frame, &Answers::default(), &mut out) {
                self.write(&out.split()).await?;
            }
        }
    }

    async fn write(&mut self, bytes: &[u8]) -> Result<(), End> {
        let stream = self.stream.as_mut().ok_or(End::Script)?;
        timeout(self.options.patience, stream.write(bytes)).await.map_err(|_| End::Patience)?.map_err(broken)
    }

    /// The next message of the client, recorded.
    async fn read(&mut self) -> Result<Frame, End> {
        loop {
            if let Some(frame) = self.take_frame() {
                if let Received::StartupMessage { params, .. } = &frame.received {
                    self.started = true;
                    self.user =
                        params.iter().find(|(n, _)| n == "user").map(|(_, v)| v.clone()).unwrap_or_default();
                }
                self.seen(|s| s.received.push((Instant::now(), frame.received.clone())));
                return Ok(frame);
            }
            let stream = self.stream.as_mut().ok_or(End::Script)?;
            let read = timeout(self.options.patience, stream.read(&mut self.buf)).await;
            match read.map_err(|_| End::Patience)?.map_err(broken)? {
                0 => {
                    let rest = self.buf.len();
                    if rest > 0 {
                        self.seen(|s| s.received.push((Instant::now(), Received::Bytes(rest))));
                    }
                    return Err(End::ClientClosed);
                }
                n => self.seen(|s| s.bytes_in += n),
            }
        }
    }

    /// Cuts one message off the buffer; all of the buffer where it isn't the protocol.
    fn take_frame(&mut self) -> Option<Frame> {
        let head = usize::from(self.started);
        let mut length = self.buf.get(head..head + 4)?;
        let length = usize::try_from(length.get_i32()).unwrap_or(0);
        let largest = if self.started { LARGEST } else { 10_000 };
        if !(4..=largest).contains(&length) {
            return Some(self.take_rest());
        }
        if self.buf.len() < head + length {
            return None;
        }
        let kind = self.buf[0];
        let mut frame = self.buf.split_to(head + length).freeze();
        frame.advance(head + 4);
        let parsed = if self.started { typed(kind, frame.clone()) } else { untyped(frame.clone()) };
        Some(parsed.unwrap_or(Frame { received: Received::Bytes(head + length), body: frame }))
    }

    fn take_rest(&mut self) -> Frame {
        let body = self.buf.split().freeze();
        Frame { received: Received::Bytes(body.len()), body }
    }

    fn seen(&self, change: impl FnOnce(&mut Seen)) {
        self.shared.change(self.index, change);
    }
}

fn broken(_: io::Error) -> End {
    End::ClientReset
}
