//! Where the daemon serves something over HTTP.

use serde::Deserialize;
use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// An address in the form of the command line and the file: `IP:PORT`, or `unix:PATH`.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
#[serde(try_from = "String")]
pub enum Address {
    Tcp(SocketAddr),
    Unix(PathBuf),
}

impl FromStr for Address {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.strip_prefix("unix:") {
            Some(path) if Path::new(path).is_absolute() => Ok(Self::Unix(path.into())),
            _ => text.parse().map(Self::Tcp).map_err(|_| {
                format!("{text:?} is no address: give IP:PORT, e.g. 127.0.0.1:9879, or unix:/PATH")
            }),
        }
    }
}

impl TryFrom<String> for Address {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => write!(f, "http://{address}/metrics"),
            Self::Unix(path) => write!(f, "/metrics at the socket {}", path.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_of_two_kinds() {
        let tcp = Address::Tcp("127.0.0.1:9879".parse().unwrap());
        assert_eq!("127.0.0.1:9879".parse(), Ok(tcp));
        assert_eq!("unix:/run/m".parse(), Ok(Address::Unix("/run/m".into())));
        for wrong in ["9879", "unix:m", "localhost:9879", ""] {
            assert!(wrong.parse::<Address>().unwrap_err().contains("127.0.0.1:9879"));
        }
    }
}
