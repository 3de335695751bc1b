//! A client of HTTP that notes when each line of an answer comes. Plain, over the sockets of the standard library: what it costs is what it measures.

use anyhow::{Context, Result, anyhow, bail};
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

/// Most bytes of a line, and of an answer that is no stream.
const MAX_BODY_BYTES: u64 = 8 << 20;
/// How long a connection may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Where a server is, and the key to it.
#[derive(Clone, Debug)]
pub struct Site {
    host: String,
    address: SocketAddr,
    /// Sent as a bearer's.
    pub key: Option<String>,
}

impl Site {
    /// The server of `http://HOST:PORT`.
    ///
    /// # Errors
    /// When it is no such address, or leads to another machine and may not.
    pub fn parse(url: &str, anywhere: bool, key: Option<String>) -> Result<Site> {
        let hint = "hint: an address looks like http://127.0.0.1:8080";
        let rest =
            url.trim_end_matches('/').strip_prefix("http://").ok_or_else(|| anyhow!("{url}: not http://\n{hint}"))?;
        let host = rest.strip_suffix("/v1").unwrap_or(rest);
        let with_port = if host.rsplit_once(':').is_some() { host.to_owned() } else { format!("{host}:80") };
        let found = with_port.to_socket_addrs().map_err(|error| anyhow!("{url}: {error}\n{hint}"))?;
        let address = found.into_iter().next().ok_or_else(|| anyhow!("{url}: no address\n{hint}"))?;
        if !anywhere && !address.ip().is_loopback() {
            bail!("{url} is not on this machine\nhint: --anywhere, if that server is yours to load");
        }
        Ok(Site { host: host.to_owned(), address, key })
    }

    /// Asks, with a body as JSON if there is one; the status, and what can be read of the answer by then.
    ///
    /// # Errors
    /// When there is no answer in time.
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

    /// The whole of a short answer; an error of its own where the status is not 200.
    ///
    /// # Errors
    /// When there is none in time.
    pub fn fetch(&self, path: &str, body: Option<&str>, time: Duration) -> Result<String> {
        let mut answer = self.ask(path, body, Instant::now() + time)?;
        let text = answer.text();
        match answer.status {
            200 => text,
            status => bail!("status {status}: {}", short(&text.unwrap_or_default())),
        }
    }

    /// The data of each event of a stream, as it comes.
    ///
    /// # Errors
    /// When it is refused, breaks off or takes longer than `time`.
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

/// The beginning of what a server said.
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

/// Lines of a connection, until a moment.
struct Lines {
    stream: BufReader<TcpStream>,
    by: Instant,
}

impl Lines {
    /// Does one read; again where it ends before its time, as a system that counts in ticks has it.
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
    /// Fills `buffer` as far as one read does; how many bytes.
    fn read(&mut self, buffer: &mut [u8]) -> Result<usize> {
        self.wait(|stream| stream.read(buffer))
    }
    /// The next line without its end; none at the end of all.
    fn line(&mut self) -> Result<Option<String>> {
        let mut line = Vec::new();
        // What a read had before its time was over is in the line already.
        self.wait(|stream| stream.take(MAX_BODY_BYTES).read_until(b'\n', &mut line))?;
        Ok((!line.is_empty()).then(|| String::from_utf8_lossy(&line).trim_end_matches(['\r', '\n']).to_owned()))
    }
}

/// The lines of a body, in chunks or not.
struct Body {
    reader: Lines,
    chunked: bool,
    /// Bytes that are left of this chunk.
    left: usize,
    ended: bool,
    /// Bytes that are no whole line yet.
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
    /// Reads some more.
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
            // The end of the line behind a chunk.
            self.reader.line()?;
        }
        Ok(())
    }
}
