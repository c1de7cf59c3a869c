//! A hub on loopback: a thread, hand-written HTTP, a record of what was asked.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

use sha1::{Digest, Sha1};
use sha2::Sha256;

/// What the server does with one path.
#[derive(Clone, Debug)]
pub enum Answer {
    /// A status without a body.
    Status(u16),
    /// A redirect.
    Redirect { to: String, headers: Vec<(String, String)> },
    /// A file.
    File(File),
}

/// A file and the ways in which it is served badly.
#[derive(Clone, Debug)]
pub struct File {
    pub bytes: Vec<u8>,
    pub etag: String,
    /// Heeds the Range header.
    pub ranges: bool,
    /// Cuts the connection after this many bytes of a body, this many times.
    pub cut: Option<(usize, u32)>,
}

impl File {
    /// As in the repository itself: the tag is git's hash of the blob.
    pub fn git(bytes: &[u8]) -> Self {
        let mut hasher = Sha1::new_with_prefix(format!("blob {}\0", bytes.len()));
        hasher.update(bytes);
        Self::tagged(bytes, &hex(&hasher.finalize()))
    }

    /// As in large file storage: the tag is the SHA-256.
    pub fn large(bytes: &[u8]) -> Self {
        Self::tagged(bytes, &hex(&Sha256::digest(bytes)))
    }

    pub fn tagged(bytes: &[u8], etag: &str) -> Self {
        Self { bytes: bytes.to_vec(), etag: format!("\"{etag}\""), ranges: true, cut: None }
    }
}

/// One request as it came.
#[derive(Clone, Debug)]
pub struct Request {
    pub method: String,
    pub path: String,
    pub headers: HashMap<String, String>,
    /// Bytes of body that were sent in answer.
    pub sent: usize,
}

#[derive(Default)]
struct State {
    answers: HashMap<String, Answer>,
    requests: Vec<Request>,
}

/// The server; it lives as long as the process.
#[derive(Clone)]
pub struct Server {
    pub address: String,
    state: Arc<Mutex<State>>,
}

impl Server {
    pub fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let server = Self { address, state: Arc::default() };
        let shared = server.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                // A client that left in the middle is part of the tests.
                let _ = shared.serve(stream.unwrap());
            }
        });
        server
    }

    pub fn put(&self, path: &str, answer: Answer) {
        self.state.lock().unwrap().answers.insert(path.to_owned(), answer);
    }

    pub fn requests(&self) -> Vec<Request> {
        self.state.lock().unwrap().requests.clone()
    }

    /// The bodies' bytes that were sent for a path.
    pub fn sent(&self, path: &str) -> usize {
        self.requests().iter().filter(|request| request.path == path).map(|r| r.sent).sum()
    }

    fn serve(&self, mut stream: TcpStream) -> std::io::Result<()> {
        let Some(mut request) = read_request(&stream)? else { return Ok(()) };
        let (head, body, announced) = self.answer(&request);
        request.sent = body.len();
        self.state.lock().unwrap().requests.push(request);
        let head = format!("{head}content-length: {announced}\r\nconnection: close\r\n\r\n");
        stream.write_all(head.as_bytes())?;
        stream.write_all(&body)?;
        stream.flush()
    }

    /// Head, body, and the length to announce.
    fn answer(&self, request: &Request) -> (String, Vec<u8>, usize) {
        let status = |code: u16| format!("HTTP/1.1 {code} Status\r\n");
        let mut state = self.state.lock().unwrap();
        let file = match state.answers.get_mut(&request.path) {
            Some(Answer::File(file)) => file,
            Some(Answer::Status(code)) => return (status(*code), vec![], 0),
            Some(Answer::Redirect { to, headers }) => {
                let mut head = format!("{}location: {to}\r\n", status(302));
                for (name, value) in headers {
                    head.push_str(&format!("{name}: {value}\r\n"));
                }
                return (head, vec![], 0);
            }
            None => return (status(404), vec![], 0),
        };
        let size = file.bytes.len();
        let range = request.headers.get("range").filter(|_| file.ranges);
        let start = range.map(|range| range[6..range.len() - 1].parse::<usize>().unwrap());
        let mut head = status(if start.is_some() { 206 } else { 200 });
        head.push_str(&format!("etag: {}\r\n", file.etag));
        if let Some(start) = start {
            head.push_str(&format!("content-range: bytes {start}-{}/{size}\r\n", size - 1));
        }
        let body = file.bytes[start.unwrap_or(0)..].to_vec();
        let announced = body.len();
        if request.method == "HEAD" {
            return (head, vec![], announced);
        }
        match &mut file.cut {
            Some((after, times)) if *times > 0 && *after < announced => {
                *times -= 1;
                (head, body[..*after].to_vec(), announced)
            }
            _ => (head, body, announced),
        }
    }
}

fn read_request(stream: &TcpStream) -> std::io::Result<Option<Request>> {
    let mut lines = BufReader::new(stream).lines();
    let Some(first) = lines.next().transpose()? else { return Ok(None) };
    let mut words = first.split(' ').map(str::to_owned);
    let (method, path) = (words.next().unwrap(), words.next().unwrap());
    let mut headers = HashMap::new();
    for line in lines {
        let line = line?;
        let Some((name, value)) = line.split_once(": ") else { break };
        headers.insert(name.to_ascii_lowercase(), value.to_owned());
    }
    Ok(Some(Request { method, path, headers, sent: 0 }))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
