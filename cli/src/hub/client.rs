//! HTTP to a hub: redirects that never carry the token away, statuses as advice, retries.

use std::time::Duration;

use anyhow::{Context, anyhow};
use ureq::http::{HeaderMap, Request, Response, StatusCode, Uri};
use ureq::{Agent, Body};

use super::Hub;
use super::verify::Checksum;
use crate::failure::Hinted;

const MAX_JSON_BYTES: u64 = 16 << 20;
const MAX_REDIRECTS: usize = 10;
const ATTEMPTS: u32 = 5;
const CONNECT_TIMEOUT: Duration = Duration::from_secs(20);
/// Without a byte for this long, a connection is dead.
const SILENCE_TIMEOUT: Duration = Duration::from_secs(60);

/// Why a request failed, and whether it is worth another try.
#[derive(Debug)]
pub struct Failure {
    /// The text for the user.
    pub error: anyhow::Error,
    /// The cause may pass: a cut connection, a busy server.
    pub again: bool,
}

impl Failure {
    /// A cause that may pass.
    pub fn again(error: anyhow::Error) -> Self {
        Self { error, again: true }
    }
}

impl From<anyhow::Error> for Failure {
    fn from(error: anyhow::Error) -> Self {
        Self { error, again: false }
    }
}

/// What the server says about a file before it is fetched.
#[derive(Clone, Debug)]
pub struct Meta {
    /// `None` where the server gives no hash.
    pub checksum: Option<Checksum>,
    /// In bytes.
    pub size: u64,
}

/// A connection to one hub.
pub struct Client {
    agent: Agent,
    endpoint: String,
    home: Uri,
    token: Option<String>,
    back_off: Duration,
}

impl Client {
    /// A client for the hub's endpoint.
    pub fn new(hub: &Hub) -> anyhow::Result<Self> {
        let home: Uri = hub.endpoint.parse().ok().filter(is_web).ok_or_else(|| {
            Hinted::new(format!("HF_ENDPOINT is {:?}, want http(s)://host", hub.endpoint))
                .hint("unset HF_ENDPOINT for https://huggingface.co")
        })?;
        let config = Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .max_redirects_will_error(false)
            .timeout_connect(Some(CONNECT_TIMEOUT))
            .timeout_recv_response(Some(SILENCE_TIMEOUT))
            .timeout_per_read(Some(SILENCE_TIMEOUT))
            .user_agent(concat!("whipsnake/", env!("CARGO_PKG_VERSION")))
            .build();
        Ok(Self {
            agent: config.new_agent(),
            endpoint: hub.endpoint.clone(),
            home,
            token: hub.token.clone(),
            back_off: hub.back_off,
        })
    }

    /// The address of a path, given as its unescaped parts.
    pub fn address(&self, parts: &[&str]) -> String {
        let mut address = self.endpoint.clone();
        for part in parts {
            address.push('/');
            address.push_str(&percent_encoded(part));
        }
        address
    }

    /// A JSON answer as text, of bounded size.
    pub fn json(&self, address: &str) -> anyhow::Result<String> {
        self.retry(|| {
            let (mut response, _) = self.get(address, None)?;
            let body = response.body_mut().with_config().limit(MAX_JSON_BYTES);
            body.read_to_string().map_err(|error| match error {
                ureq::Error::BodyExceedsLimit(_) => {
                    anyhow!("the server's answer is larger than {} MiB", MAX_JSON_BYTES >> 20)
                        .into()
                }
                error => Failure::again(error.into()),
            })
        })
    }

    /// Hash and size of a file, from the endpoint itself and never from a host it redirects to.
    pub fn meta(&self, address: &str) -> anyhow::Result<Meta> {
        self.retry(|| {
            let (_, headers) = self.open("HEAD", address, None)?;
            let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
            let size = text("x-linked-size").or_else(|| text("content-length"));
            let size = size.and_then(|size| size.trim().parse().ok());
            let size = size.context("the server does not tell the file's size")?;
            let etag = text("x-linked-etag").or_else(|| text("etag"));
            Ok(Meta { checksum: etag.and_then(Checksum::from_etag), size })
        })
    }

    /// A file from byte `start` on; the status tells whether the server heeds that.
    pub fn get(
        &self,
        address: &str,
        start: Option<u64>,
    ) -> Result<(Response<Body>, HeaderMap), Failure> {
        self.open("GET", address, start)
    }

    /// Runs `attempt` until it succeeds, fails for good, or has failed too often.
    pub fn retry<T>(&self, mut attempt: impl FnMut() -> Result<T, Failure>) -> anyhow::Result<T> {
        let mut failures = 0;
        loop {
            match attempt() {
                Ok(value) => return Ok(value),
                Err(failure) if !failure.again => return Err(failure.error),
                Err(failure) => {
                    failures += 1;
                    tracing::debug!("attempt {failures} of {ATTEMPTS}: {:#}", failure.error);
                    if failures == ATTEMPTS {
                        return Err(failure.error.context(format!("{ATTEMPTS} attempts failed")));
                    }
                    std::thread::sleep(self.back_off * (1 << (failures - 1)));
                }
            }
        }
    }

    /// Sends a request and follows its redirects: all of them for GET, those within the endpoint
    /// for HEAD. Gives the last response, and the endpoint's own last headers.
    fn open(
        &self,
        method: &str,
        address: &str,
        start: Option<u64>,
    ) -> Result<(Response<Body>, HeaderMap), Failure> {
        let mut uri: Uri = address.parse().with_context(|| format!("bad address {address}"))?;
        let mut own_headers = HeaderMap::new();
        for _ in 0..=MAX_REDIRECTS {
            let own = same_origin(&uri, &self.home);
            let response = self.send(method, &uri, start, own)?;
            if own {
                own_headers = response.headers().clone();
            }
            if !is_redirect(response.status()) {
                return self.checked(response, &uri, own).map(|response| (response, own_headers));
            }
            let target = redirect_target(&uri, response.headers())?;
            if method == "HEAD" && !same_origin(&target, &self.home) {
                return Ok((response, own_headers));
            }
            uri = target;
        }
        Err(anyhow!("more than {MAX_REDIRECTS} redirects from {address}").into())
    }

    fn send(
        &self,
        method: &str,
        uri: &Uri,
        start: Option<u64>,
        own: bool,
    ) -> Result<Response<Body>, Failure> {
        // Compression would make the size and the ranges those of something else.
        let mut request = Request::builder()
            .method(method)
            .uri(uri.clone())
            .header("accept-encoding", "identity");
        if let Some(start) = start {
            request = request.header("range", format!("bytes={start}-"));
        }
        if let Some(token) = self.token.as_ref().filter(|_| own) {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        let request = request.body(()).map_err(|_| anyhow!("HF_TOKEN is no access token"))?;
        self.agent.run(request).map_err(|error| {
            let host = uri.host().unwrap_or_default();
            Failure::again(anyhow!(error).context(format!("cannot reach {host}")))
        })
    }

    /// Turns a status that is no answer into advice.
    fn checked(
        &self,
        response: Response<Body>,
        uri: &Uri,
        own: bool,
    ) -> Result<Response<Body>, Failure> {
        let status = response.status();
        let host = uri.host().unwrap_or_default();
        match status.as_u16() {
            200 | 206 | 416 => Ok(response),
            401 | 403 if own => Err(self.refused(status, host).into()),
            404 => Err(anyhow::Error::new(not_found(host)).into()),
            // A signed address of another host may have run out.
            403 | 408 | 429 | 500.. => Err(Failure::again(anyhow!("{host} answers {status}"))),
            _ => Err(anyhow!("{host} answers {status}").into()),
        }
    }

    fn refused(&self, status: StatusCode, host: &str) -> anyhow::Error {
        let error = Hinted::new(format!("{host} answers {status}"));
        match self.token {
            None => error
                .hint("set HF_TOKEN to an access token, if the model is private or gated")
                .hint("check the name: hubs also answer so for models that do not exist"),
            Some(_) => error
                .hint("accept the model's terms on its page with the account of your token")
                .hint("check that HF_TOKEN is valid and may read this model"),
        }
        .into()
    }
}

fn not_found(host: &str) -> Hinted {
    Hinted::new(format!("{host} has no such model, revision or file"))
        .hint("check the spelling of owner/name and of @revision")
}

fn is_web(uri: &Uri) -> bool {
    matches!(uri.scheme_str(), Some("http" | "https")) && uri.host().is_some()
}

fn is_redirect(status: StatusCode) -> bool {
    matches!(status.as_u16(), 301 | 302 | 303 | 307 | 308)
}

fn same_origin(a: &Uri, b: &Uri) -> bool {
    let port = |uri: &Uri| {
        uri.port_u16().unwrap_or(if uri.scheme_str() == Some("https") { 443 } else { 80 })
    };
    let host = |uri: &Uri| uri.host().map(str::to_ascii_lowercase);
    a.scheme() == b.scheme() && host(a) == host(b) && port(a) == port(b)
}

/// Where a redirect from `from` leads; never from https to http.
fn redirect_target(from: &Uri, headers: &HeaderMap) -> anyhow::Result<Uri> {
    let location = headers.get("location").and_then(|value| value.to_str().ok());
    let location = location.context("a redirect that leads nowhere")?;
    let scheme = from.scheme_str().unwrap_or("https");
    let host = from.authority().context("an address without a host")?;
    let address = if location.starts_with("//") {
        format!("{scheme}:{location}")
    } else if location.starts_with('/') {
        format!("{scheme}://{host}{location}")
    } else {
        location.to_owned()
    };
    let target: Option<Uri> = address.parse().ok().filter(is_web);
    let target = target.with_context(|| format!("a redirect to {location:?}"))?;
    if scheme == "https" && target.scheme_str() == Some("http") {
        return Err(anyhow!("a redirect from https to http"));
    }
    Ok(target)
}

/// A text as one part of an address.
fn percent_encoded(part: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte);
    part.bytes()
        .map(|byte| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(from: &str, location: &str) -> Result<String, String> {
        let mut headers = HeaderMap::new();
        headers.insert("location", location.parse().unwrap());
        let target = redirect_target(&from.parse().unwrap(), &headers);
        target.map(|uri| uri.to_string()).map_err(|error| error.to_string())
    }

    #[test]
    fn redirects_may_be_relative_but_never_lose_encryption() {
        let from = "https://a.example:8/x/y";
        assert_eq!(target(from, "/z?q=1").unwrap(), "https://a.example:8/z?q=1");
        assert_eq!(target(from, "//b.example/z").unwrap(), "https://b.example/z");
        assert_eq!(target(from, "https://b.example/z").unwrap(), "https://b.example/z");
        let error = target(from, "http://a.example/z").unwrap_err();
        assert_eq!(error, "a redirect from https to http");
        for location in ["file:///etc/passwd", "ftp://b.example/z", ""] {
            assert!(target(from, location).is_err(), "{location}");
        }
    }

    #[test]
    fn a_host_is_the_same_only_with_scheme_and_port() {
        let same = |a: &str, b: &str| same_origin(&a.parse().unwrap(), &b.parse().unwrap());
        assert!(same("https://hub.example/x", "https://HUB.example:443"));
        for other in ["http://hub.example", "https://hub.example:444", "https://hub.example.evil"] {
            assert!(!same("https://hub.example", other), "{other}");
        }
    }

    #[test]
    fn parts_of_an_address_are_escaped() {
        assert_eq!(percent_encoded("refs/pr/1"), "refs%2Fpr%2F1");
        assert_eq!(percent_encoded("a b?#%é.json"), "a%20b%3F%23%25%C3%A9.json");
    }
}
