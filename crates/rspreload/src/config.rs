//! Which sockets become rsockets, and of which size: `/etc/rdma/rsocket/preload_config`, and
//! variables of the environment.

use std::{env, ffi::c_int, fs, sync::OnceLock};

const FILE: &str = "/etc/rdma/rsocket/preload_config";

/// Rows of the file, `None` for what may be anything. Without rows all sockets become rsockets.
#[derive(Debug, PartialEq, Eq)]
struct Row {
    program: Option<String>,
    domain: Option<c_int>,
    kind: Option<c_int>,
    protocol: Option<c_int>,
}

impl Row {
    /// `None` for comments and mistakes.
    fn parse(line: &str) -> Option<Self> {
        let mut words = line.split_whitespace();
        let [program, domain, kind, protocol] = [0; 4].map(|_| words.next());
        let program = program.filter(|program| !program.starts_with('#'))?;
        let domain = match domain?.to_ascii_uppercase().as_str() {
            "*" => None,
            "INET" | "AF_INET" | "PF_INET" => Some(libc::AF_INET),
            "INET6" | "AF_INET6" | "PF_INET6" => Some(libc::AF_INET6),
            _ => return None,
        };
        let kind = match kind?.to_ascii_uppercase().as_str() {
            "*" => None,
            "STREAM" | "SOCK_STREAM" => Some(libc::SOCK_STREAM),
            "DGRAM" | "SOCK_DGRAM" => Some(libc::SOCK_DGRAM),
            _ => return None,
        };
        let protocol = match protocol?.to_ascii_uppercase().as_str() {
            "*" => None,
            "TCP" | "IPPROTO_TCP" => Some(libc::IPPROTO_TCP),
            "UDP" | "IPPROTO_UDP" => Some(libc::IPPROTO_UDP),
            _ => return None,
        };
        let program = (program != "*").then(|| program.to_ascii_lowercase());
        Some(Self { program, domain, kind, protocol })
    }

    fn matches(&self, program: &str, socket: (c_int, c_int, c_int)) -> bool {
        let is = |wanted: Option<c_int>, is: c_int| wanted.is_none_or(|wanted| wanted == is);
        let (domain, kind, protocol) = socket;
        let named = self.program.as_ref().is_none_or(|name| program.starts_with(name.as_str()));
        named && is(self.domain, domain) && is(self.kind, kind) && is(self.protocol, protocol)
    }
}

/// Whether a socket of this domain, type and protocol becomes an rsocket.
pub(crate) fn wants(domain: c_int, kind: c_int, protocol: c_int) -> bool {
    static ROWS: OnceLock<(Vec<Row>, String)> = OnceLock::new();
    let kind = kind & !(libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK);
    let protocol = match (kind, protocol) {
        (libc::SOCK_STREAM, 0) => libc::IPPROTO_TCP,
        (libc::SOCK_DGRAM, 0) => libc::IPPROTO_UDP,
        (_, protocol) => protocol,
    };
    let can = matches!(domain, libc::AF_INET | libc::AF_INET6)
        && matches!(
            (kind, protocol),
            (libc::SOCK_STREAM, libc::IPPROTO_TCP) | (libc::SOCK_DGRAM, libc::IPPROTO_UDP)
        );
    if !can {
        return false;
    }
    let (rows, program) = ROWS.get_or_init(|| {
        let text = fs::read_to_string(FILE).unwrap_or_default();
        let program = env::current_exe().ok();
        let name = program.as_ref().and_then(|path| path.file_name());
        let name = name.map(|name| name.to_string_lossy().to_ascii_lowercase());
        (text.lines().filter_map(Row::parse).collect(), name.unwrap_or_default())
    });
    rows.is_empty() || rows.iter().any(|row| row.matches(program, (domain, kind, protocol)))
}

/// Sizes that the environment wants, with the options that set them.
pub(crate) fn sizes() -> &'static [(c_int, c_int)] {
    static SIZES: OnceLock<Vec<(c_int, c_int)>> = OnceLock::new();
    let names = [("RS_SQ_SIZE", 0), ("RS_RQ_SIZE", 1), ("RS_INLINE", 2)];
    SIZES.get_or_init(|| {
        let size = |(name, option)| {
            let value: c_int = env::var(name).ok()?.trim().parse().ok()?;
            (value > 0).then_some((option, value))
        };
        names.into_iter().filter_map(size).collect()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_name_programs_and_sockets() {
        let row = Row::parse("iperf3  INET stream *").unwrap();
        let tcp = (libc::AF_INET, libc::SOCK_STREAM, libc::IPPROTO_TCP);
        let tcp6 = (libc::AF_INET6, libc::SOCK_STREAM, libc::IPPROTO_TCP);
        assert!(row.matches("iperf3", tcp) && row.matches("iperf3.9", tcp));
        assert!(!row.matches("iperf", tcp) && !row.matches("iperf3", tcp6));
        let all = Row::parse("* * * *").unwrap();
        assert!(all.matches("anything", tcp6));
        for wrong in ["# a b c d", "", "x INET STREAM", "x IPX * *", "x * RAW *", "x * * SCTP"] {
            assert_eq!(Row::parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn only_sockets_that_rsockets_can_be_are_wanted() {
        assert!(wants(libc::AF_INET, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0));
        assert!(wants(libc::AF_INET6, libc::SOCK_DGRAM, libc::IPPROTO_UDP));
        assert!(!wants(libc::AF_UNIX, libc::SOCK_STREAM, 0));
        assert!(!wants(libc::AF_INET, libc::SOCK_RAW, 1));
        assert!(!wants(libc::AF_INET, libc::SOCK_DGRAM, libc::IPPROTO_ICMP));
    }
}
