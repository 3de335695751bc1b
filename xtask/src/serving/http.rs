//! Minimal HTTP client that delivers the events of a stream as they arrive. It uses plain sockets
//! of the standard library, so that its overhead does not distort the measurements.

use anyhow::{Context, Result, anyhow, bail};
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

/// Maximum bytes of a line, and of an answer that is not a stream.
const MAX_BODY_BYTES: u64 = 8 << 20;
/// Timeout of connecting to a server.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Address of a server, and its API key.
#[derive(Clone, Debug)]
pub struct Site {
    host: String,
    address: SocketAddr,
    /// Sent as a bearer token.
    pub key: Option<String>,
}

impl Site {
    /// Parses an address such as `http://HOST:PORT`.
    ///
    /// # Errors
    /// If it is not such an address, or is on another machine and `anywhere` is false.
    pub fn parse(url: &str, anywhere: bool, key: Option<String>) -> Result<Site> {
        let hint = "hint: an address looks like http://127.0.0.1:8080";
        let rest =
            url.trim_end_matches('/').strip_prefix("http://").ok_or_else(|| anyhow!("{url}: not http://\n{hint}"))?;
        let host = rest.strip_suffix("/v1").unwrap_or(rest);
        let with_port = if host.rsplit_once(':').is_some() { host.to_owned() } else { format!("{host}:80") };
        let found = with_port.to_socket_addrs().map_err(|error| anyhow!("{url}: {error}\n{hint}"))?;
        let address = found.into_iter().next().ok_or_else(|| anyhow!("{url}: no address\n{hint}"))?;
        if !anywhere && !address.ip().is_loopback() {
            bail!("{url} is not on this machine\nhint: --anywhere, if you may load that server");
        }
        Ok(Site { host: host.to_owned(), address, key })
    }

    /// Sends a request, with a JSON body if given; returns the status and a reader of the body.
    ///
    /// # Errors
    /// If there is no answer by the deadline.
    fn ask(&self, path: &str, body: Option<&str>, by: Instant) -> Result<Answer> {
        let left = || by.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
        let mut stream =
            TcpStream::connect_timeout(&self.address, CONNECT_TIMEOUT.min(left())).context("cannot connect")?;
        stream.set_nodelay(true)?;
        stream.set_write_timeout(Some(left()))?;
        let method = if body.is_some() { "POST" } else { "GET" };
        let mut head = format!("{method} {path} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n", self.host);
        if let Some(key) = &self.key {
            head += &format!("Authorization: Bearer {key}\r\n");
        }
        if let Some(body) = body {
            head += &format!("Content-Type: application/json\r\nContent-Length: {}\r\n", body.len());
        }
        stream.write_all((head + "\r\n" + body.unwrap_or_default()).as_bytes()).context("cannot send")?;
        let mut reader = Lines { stream: BufReader::new(stream), by };
        let status = reader.line()?.context("it hung up")?;
        let status = status.split(' ').nth(1).and_then(|code| code.parse().ok());
        let status = status.ok_or_else(|| anyhow!("no answer of HTTP"))?;
        let mut chunked = false;
        while let Some(line) = reader.line()?.filter(|line| !line.is_empty()) {
            let line = line.to_ascii_lowercase();
            chunked |= line.starts_with("transfer-encoding:") && line.contains("chunked");
        }
        Ok(Answer { status, lines: Body { reader, chunked, left: 0, ended: false, held: Vec::new() } })
    }

    /// Returns the body of an answer with status 200.
    ///
    /// # Errors
    /// If the status is another, or the answer is not complete in time.
    pub fn fetch(&self, path: &str, body: Option<&str>, time: Duration) -> Result<String> {
        let mut answer = self.ask(path, body, Instant::now() + time)?;
        let text = answer.text();
        match answer.status {
            200 => text,
            status => bail!("status {status}: {}", short(&text.unwrap_or_default())),
        }
    }

    /// Calls `each` with the data of every event of a stream, as it arrives.
    ///
    /// # Errors
    /// If the request is refused, the stream breaks off or
    /// takes longer than `time`, or `each` fails.
    pub fn stream(
        &self,
        path: &str,
        body: &str,
        time: Duration,
        mut each: impl FnMut(&str) -> Result<()>,
    ) -> Result<()> {
        let mut answer = self.ask(path, Some(body), Instant::now() + time)?;
        if answer.status != 200 {
            let text = answer.text().unwrap_or_default();
            bail!("status {}: {}", answer.status, short(&text));
        }
        while let Some(line) = answer.lines.line()? {
            match line.strip_prefix("data:").map(str::trim) {
                Some("[DONE]") => return Ok(()),
                Some(data) => each(data)?,
                None => {}
            }
        }
        bail!("the stream broke off")
    }
}

/// Shortens a server's answer for an error message.
fn short(text: &str) -> String {
    text.trim().chars().take(200).map(|c| if c.is_control() { ' ' } else { c }).collect()
}

struct Answer {
    status: u16,
    lines: Body,
}

impl Answer {
    fn text(&mut self) -> Result<String> {
        let mut text = String::new();
        while let Some(line) = self.lines.line()? {
            text = text + &line + "\n";
            if text.len() as u64 > MAX_BODY_BYTES {
                bail!("an answer of more than {MAX_BODY_BYTES} bytes");
            }
        }
        Ok(text)
    }
}

/// Lines of a connection, read until a deadline.
struct Lines {
    stream: BufReader<TcpStream>,
    by: Instant,
}

impl Lines {
    /// Performs one read, repeated if the socket's timeout fires early,
    /// as it is rounded to system ticks.
    fn wait<T>(&mut self, mut read: impl FnMut(&mut BufReader<TcpStream>) -> std::io::Result<T>) -> Result<T> {
        loop {
            let left = self.by.saturating_duration_since(Instant::now());
            if left.is_zero() {
                bail!("no answer in time");
            }
            self.stream.get_ref().set_read_timeout(Some(left))?;
            match read(&mut self.stream) {
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
                other => return other.map_err(|error| anyhow!("the connection broke: {error}")),
            }
        }
    }
    /// Performs one read into `buffer`; returns the number of bytes.
    fn read(&mut self, buffer: &mut [u8]) -> Result<usize> {
        self.wait(|stream| stream.read(buffer))
    }
    /// Returns the next line without its line end; `None` at the end of the connection.
    fn line(&mut self) -> Result<Option<String>> {
        let mut line = Vec::new();
        // Bytes that were read before an early timeout are already in `line`.
        self.wait(|stream| stream.take(MAX_BODY_BYTES).read_until(b'\n', &mut line))?;
        Ok((!line.is_empty()).then(|| String::from_utf8_lossy(&line).trim_end_matches(['\r', '\n']).to_owned()))
    }
}

/// Lines of a body, chunked or not.
struct Body {
    reader: Lines,
    chunked: bool,
    /// Unread bytes of the current chunk.
    left: usize,
    ended: bool,
    /// Bytes that were read but not yet returned.
    held: Vec<u8>,
}

impl Body {
    fn line(&mut self) -> Result<Option<String>> {
        loop {
            if let Some(end) = self.held.iter().position(|&byte| byte == b'\n') {
                let line: Vec<u8> = self.held.drain(..=end).collect();
                return Ok(Some(String::from_utf8_lossy(&line).trim_end_matches(['\r', '\n']).to_owned()));
            }
            if self.ended {
                let rest = std::mem::take(&mut self.held);
                return Ok((!rest.is_empty()).then(|| String::from_utf8_lossy(&rest).into_owned()));
            }
            if self.held.len() as u64 > MAX_BODY_BYTES {
                bail!("a line of more than {MAX_BODY_BYTES} bytes");
            }
            self.more()?;
        }
    }
    /// Reads more bytes into `held`.
    fn more(&mut self) -> Result<()> {
        let mut buffer = [0; 16 << 10];
        if !self.chunked {
            let read = self.reader.read(&mut buffer)?;
            self.ended = read == 0;
            self.held.extend_from_slice(&buffer[..read]);
            return Ok(());
        }
        if self.left == 0 {
            let size = self.reader.line()?.context("the answer broke off")?;
            let size = size.split(';').next().unwrap_or_default().trim();
            self.left =
                usize::from_str_radix(size, 16).map_err(|_| anyhow!("a chunk without a size: {}", short(size)))?;
            if self.left == 0 {
                self.ended = true;
                return Ok(());
            }
        }
        let most = self.left.min(buffer.len());
        let read = self.reader.read(&mut buffer[..most])?;
        if read == 0 {
            bail!("the answer broke off");
        }
        self.held.extend_from_slice(&buffer[..read]);
        self.left -= read;
        if self.left == 0 {
            // The line end after a chunk.
            self.reader.line()?;
        }
        Ok(())
    }
}
