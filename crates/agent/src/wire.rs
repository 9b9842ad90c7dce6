//! The messages of the proc connector (`include/uapi/linux/cn_proc.h`), in the byte order of the host.
//!
//! `nlmsghdr` (16 bytes), `cn_msg` (20), `proc_event` (40). Reading never fails: what is cut off, foreign or not of
//! interest is [`Event::Other`].

use crate::source::Name;

/// `CN_IDX_PROC`, `CN_VAL_PROC`: the connector of process events.
pub const PROC: ConnectorId = ConnectorId { index: 1, value: 1 };

/// The multicast group of process events.
pub(crate) const GROUP: u32 = 1;

/// Bytes of an event: one message, one event.
pub(crate) const EVENT_BYTES: usize = 76;

/// Events that can mean another image or name of a process: `PROC_EVENT_EXEC | PROC_EVENT_COMM`.
pub(crate) const WANTED: u32 = EXEC | COMM;

/// Offsets in a message, for the socket filter too.
pub(crate) mod at {
    pub(crate) const INDEX: usize = 16;
    pub(crate) const VALUE: usize = 20;
    pub(crate) const ACK: usize = 28;
    pub(crate) const WHAT: usize = 36;
    pub(crate) const PID: usize = 52;
    pub(crate) const TGID: usize = 56;
    pub(crate) const COMM: usize = 60;
}

pub(crate) const NONE: u32 = 0;
pub(crate) const EXEC: u32 = 2;
pub(crate) const COMM: u32 = 0x200;

const NLMSGHDR_BYTES: usize = 16;
const CN_MSG_BYTES: usize = 20;
const NLMSG_DONE: u16 = 3;

/// Which connector.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConnectorId {
    /// `cb_id.idx`.
    pub index: u32,
    /// `cb_id.val`.
    pub value: u32,
}

/// What is asked of the connector.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ask {
    /// All events (`PROC_CN_MCAST_LISTEN`), on every kernel.
    Listen,
    /// [`WANTED`] events only. Kernels before 6.6 do not know this form and pass over it in silence.
    ListenWanted,
    /// None any more (`PROC_CN_MCAST_IGNORE`).
    Ignore,
    /// An operation the kernel does not know. Tests use it to do what an attacker would.
    Unknown,
}

/// What a message says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// The answer to a request: the request's own number plus one, and an error or 0.
    Ack {
        /// Number.
        ack: u32,
        /// `errno`, or 0.
        error: u32,
    },
    /// A process has a new image.
    Exec {
        /// Number of the process.
        tgid: u32,
    },
    /// A process or one of its threads has a new name.
    Renamed {
        /// Number of the thread.
        pid: u32,
        /// Number of the process.
        tgid: u32,
        /// The name.
        name: Name,
    },
    /// Anything else.
    Other,
}

/// A request with the number `ack`, under which its answer is known.
pub fn request(to: ConnectorId, ask: Ask, ack: u32) -> Vec<u8> {
    let payload: Vec<u8> = match ask {
        Ask::Listen => 1u32.to_ne_bytes().to_vec(),
        Ask::ListenWanted => [1u32, WANTED].into_iter().flat_map(u32::to_ne_bytes).collect(),
        Ask::Ignore => 2u32.to_ne_bytes().to_vec(),
        Ask::Unknown => 3u32.to_ne_bytes().to_vec(),
    };
    let length = NLMSGHDR_BYTES + CN_MSG_BYTES + payload.len();
    let mut message = Vec::with_capacity(length);
    // nlmsghdr: length, type, flags, sequence, port.
    message.extend(u32::try_from(length).unwrap_or_default().to_ne_bytes());
    message.extend(NLMSG_DONE.to_ne_bytes());
    message.extend([0; 10]);
    // cn_msg: index, value, sequence, ack, length of the payload, flags.
    for word in [to.index, to.value, 0, ack] {
        message.extend(word.to_ne_bytes());
    }
    message.extend(u16::try_from(payload.len()).unwrap_or_default().to_ne_bytes());
    message.extend([0; 2]);
    message.extend(payload);
    message
}

/// Reads a message.
pub fn parse(message: &[u8]) -> Event {
    let word = |at: usize| {
        let bytes = message.get(at..at + 4)?;
        Some(u32::from_ne_bytes(bytes.try_into().ok()?))
    };
    let read = || {
        let id = ConnectorId { index: word(at::INDEX)?, value: word(at::VALUE)? };
        if id != PROC {
            return None;
        }
        match word(at::WHAT)? {
            NONE => Some(Event::Ack { ack: word(at::ACK)?, error: word(at::PID)? }),
            EXEC => Some(Event::Exec { tgid: word(at::TGID)? }),
            COMM => {
                let name = message.get(at::COMM..at::COMM + Name::BYTES)?;
                Some(Event::Renamed { pid: word(at::PID)?, tgid: word(at::TGID)?, name: Name::new(name) })
            }
            _ => Some(Event::Other),
        }
    };
    read().unwrap_or(Event::Other)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An event as a little-endian kernel 6.18 sent it.
    fn golden(what: u32, union: &[u8]) -> Vec<u8> {
        let mut message = Vec::new();
        message.extend(76u32.to_ne_bytes());
        message.extend([3, 0].map(u16::to_ne_bytes).concat());
        message.extend([0; 8]);
        message.extend([1u32, 1, 77, 5].map(u32::to_ne_bytes).concat());
        message.extend([40u16, 0].map(u16::to_ne_bytes).concat());
        message.extend(what.to_ne_bytes());
        message.extend([0; 12]);
        message.extend(union);
        message.resize(EVENT_BYTES, 0);
        message
    }

    fn words(words: &[u32]) -> Vec<u8> {
        words.iter().flat_map(|word| word.to_ne_bytes()).collect()
    }

    #[test]
    fn events_are_read_at_their_offsets() {
        assert_eq!(parse(&golden(EXEC, &words(&[900, 901]))), Event::Exec { tgid: 901 });
        assert_eq!(parse(&golden(NONE, &words(&[1]))), Event::Ack { ack: 5, error: 1 });
        let renamed = [words(&[7, 8]), b"javac\0old-garbage".to_vec()].concat();
        let name = Name::new(b"javac");
        assert_eq!(parse(&golden(COMM, &renamed)), Event::Renamed { pid: 7, tgid: 8, name });
        assert_eq!(name.bytes(), b"javac");
        for other in [1, 4, 0x40, 0x80, 0x100, 0x4000_0000, 0x8000_0000] {
            assert_eq!(parse(&golden(other, &words(&[1, 1]))), Event::Other);
        }
    }

    #[test]
    fn what_is_cut_off_or_foreign_is_nothing() {
        let whole = golden(COMM, &[words(&[7, 8]), b"0123456789abcde\0".to_vec()].concat());
        for length in 0..whole.len() {
            assert_eq!(parse(&whole[..length]), Event::Other, "{length} bytes");
        }
        for place in [at::INDEX, at::VALUE] {
            let mut foreign = whole.clone();
            foreign[place] ^= 0xff;
            assert_eq!(parse(&foreign), Event::Other);
        }
    }

    #[test]
    fn a_request_carries_its_number_and_what_is_asked() {
        let message = request(PROC, Ask::ListenWanted, 0xdead_beef);
        assert_eq!(message.len(), 44);
        assert_eq!(message[..4], 44u32.to_ne_bytes());
        assert_eq!(message[at::INDEX..at::INDEX + 8], words(&[1, 1]));
        assert_eq!(message[at::ACK..at::ACK + 4], 0xdead_beef_u32.to_ne_bytes());
        assert_eq!(message[32..36], [8u16, 0].map(u16::to_ne_bytes).concat());
        assert_eq!(message[36..], words(&[1, 0x202]));
        assert_eq!(request(PROC, Ask::Listen, 1)[36..], words(&[1]));
        assert_eq!(request(PROC, Ask::Ignore, 1)[36..], words(&[2]));
    }
}
