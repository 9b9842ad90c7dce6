//! Which API servers a kubeconfig Secret may lead to.
//!
//! Whoever may write the Secret chooses the server, and the controller connects to it from inside the management cluster's
//! network. An administrator may therefore list the servers that are meant.

use std::fmt;
use std::net::IpAddr;

/// The servers that are allowed; all of them if the list is empty.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct AllowedServers(pub Vec<AllowedServer>);

/// One entry of the list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AllowedServer {
    /// Every address of a network. A host that is given by name is in no network: nobody knows where it will lead.
    Network {
        /// An address of it.
        address: IpAddr,
        /// Bits that its addresses have in common.
        bits: u8,
    },
    /// Every name below a domain.
    Below(String),
    /// One host, by name or address, and its port if that matters.
    Host {
        /// Name or address.
        host: String,
        /// Port.
        port: Option<u16>,
    },
}

impl AllowedServer {
    /// Reads `10.0.0.0/8`, `*.clusters.example.com`, `api.example.com`, `api.example.com:6443`, `[fd00::1]:6443`.
    pub fn parse(text: &str) -> Result<Self, String> {
        let wrong = || {
            format!(
                "\"{text}\" is neither a network (10.0.0.0/8), nor a domain (*.example.com), nor a host (api.example.com or \
                 api.example.com:6443)"
            )
        };
        if let Some((address, bits)) = text.split_once('/') {
            let address: IpAddr = address.parse().map_err(|_| wrong())?;
            let bits: u8 = bits.parse().map_err(|_| wrong())?;
            let most = if address.is_ipv4() { 32 } else { 128 };
            return if bits <= most { Ok(Self::Network { address, bits }) } else { Err(wrong()) };
        }
        if let Some(domain) = text.strip_prefix("*.") {
            return is_name(domain).then(|| Self::Below(domain.to_ascii_lowercase())).ok_or_else(wrong);
        }
        let (host, port) = match (text.parse::<IpAddr>(), text.rsplit_once(':')) {
            (Ok(_), _) | (Err(_), None) => (text, None),
            (Err(_), Some((host, port))) => (host, Some(port.parse().map_err(|_| wrong())?)),
        };
        let host = bare(host);
        if host.parse::<IpAddr>().is_err() && !is_name(host) {
            return Err(wrong());
        }
        Ok(Self::Host { host: host.to_ascii_lowercase(), port })
    }

    fn covers(&self, host: &str, port: u16) -> bool {
        match self {
            Self::Network { address, bits } => {
                host.parse().is_ok_and(|it: IpAddr| shares(*address, it, u32::from(*bits)))
            }
            Self::Below(domain) => {
                let below = host.strip_suffix(domain.as_str()).and_then(|rest| rest.strip_suffix('.'));
                below.is_some_and(|name| !name.is_empty())
            }
            Self::Host { host: allowed, port: only } => {
                let is_same = match (allowed.parse::<IpAddr>(), host.parse::<IpAddr>()) {
                    (Ok(allowed), Ok(host)) => allowed == host,
                    _ => allowed == host,
                };
                is_same && only.is_none_or(|only| only == port)
            }
        }
    }
}

impl AllowedServers {
    /// Whether a server may be connected to. The host is a name or an address, as a URL has it.
    pub fn allow(&self, host: &str, port: u16) -> bool {
        let host = bare(host).trim_end_matches('.').to_ascii_lowercase();
        self.0.is_empty() || self.0.iter().any(|server| server.covers(&host, port))
    }
}

impl fmt::Display for AllowedServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Network { address, bits } => write!(f, "{address}/{bits}"),
            Self::Below(domain) => write!(f, "*.{domain}"),
            Self::Host { host, port: None } => f.write_str(host),
            Self::Host { host, port: Some(port) } if host.contains(':') => write!(f, "[{host}]:{port}"),
            Self::Host { host, port: Some(port) } => write!(f, "{host}:{port}"),
        }
    }
}

/// An IPv6 address without its brackets.
fn bare(host: &str) -> &str {
    host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host)
}

fn is_name(text: &str) -> bool {
    let is_part = |part: &str| {
        !part.is_empty() && part.chars().all(|c| c.is_ascii_alphanumeric() || c == '-' || c == '_')
    };
    text.split('.').all(is_part)
}

/// Whether two addresses have their first bits in common.
fn shares(one: IpAddr, other: IpAddr, bits: u32) -> bool {
    let differ =
        |one: u128, other: u128, width: u32| (one ^ other).checked_shr(width - bits).unwrap_or(0) != 0;
    match (one, other) {
        (IpAddr::V4(one), IpAddr::V4(other)) => !differ(one.to_bits().into(), other.to_bits().into(), 32),
        (IpAddr::V6(one), IpAddr::V6(other)) => !differ(one.to_bits(), other.to_bits(), 128),
        // An address of the older kind may be written as one of the newer.
        (IpAddr::V4(_), IpAddr::V6(other)) => {
            other.to_ipv4_mapped().is_some_and(|other| shares(one, other.into(), bits))
        }
        (IpAddr::V6(_), IpAddr::V4(_)) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allows(list: &[&str], host: &str, port: u16) -> bool {
        AllowedServers(list.iter().map(|text| AllowedServer::parse(text).unwrap()).collect())
            .allow(host, port)
    }

    #[test]
    fn an_empty_list_allows_everything_and_another_only_what_it_names() {
        assert!(allows(&[], "anything.example", 443));
        for (entry, host, port, expected) in [
            ("10.20.0.0/16", "10.20.3.4", 6443, true),
            ("10.20.0.0/16", "10.21.0.1", 6443, false),
            ("10.20.0.0/16", "::ffff:10.20.3.4", 6443, true),
            ("10.20.0.0/16", "[::ffff:10.21.3.4]", 6443, false),
            ("10.20.0.0/16", "ten.example.com", 6443, false),
            ("0.0.0.0/0", "203.0.113.9", 1, true),
            ("0.0.0.0/0", "fd00::1", 1, false),
            ("fd00::/8", "[fd12::1]", 6443, true),
            ("fd00::/8", "[fe80::1]", 6443, false),
            ("10.0.0.1/32", "10.0.0.2", 6443, false),
            ("*.clusters.example.com", "blue.clusters.example.com", 6443, true),
            ("*.clusters.example.com", "a.b.Clusters.Example.com.", 6443, true),
            ("*.clusters.example.com", "clusters.example.com", 6443, false),
            ("*.clusters.example.com", "evilclusters.example.com", 6443, false),
            ("*.clusters.example.com", ".clusters.example.com", 6443, false),
            ("*.clusters.example.com", "clusters.example.com.evil.net", 6443, false),
            ("api.example.com", "API.example.com", 9, true),
            ("api.example.com:6443", "api.example.com", 6443, true),
            ("api.example.com:6443", "api.example.com", 443, false),
            ("[fd00::1]:6443", "fd00:0::1", 6443, true),
            ("fd00::1", "[fd00::1]", 80, true),
        ] {
            assert_eq!(allows(&[entry], host, port), expected, "{entry} {host}:{port}");
        }
    }

    #[test]
    fn an_entry_reads_as_it_is_written_and_nothing_else_is_read() {
        for text in
            ["10.0.0.0/8", "*.example.com", "api.example.com", "api:6443", "[fd00::1]:6443", "fd00::1"]
        {
            assert_eq!(AllowedServer::parse(text).unwrap().to_string(), text);
        }
        for odd in [
            "",
            "*",
            "*.",
            "*.a..b",
            "10.0.0.0/33",
            "10.0.0.0/x",
            "a b",
            "https://a",
            "a:port",
            "a:70000",
            "a/b",
        ] {
            assert!(AllowedServer::parse(odd).is_err(), "{odd}");
        }
    }
}
