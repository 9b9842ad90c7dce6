//! The proc connector: the kernel tells of every process that becomes another program or takes another name.
//!
//! It has many ways to be silent without an error: another network, pid or user namespace, a kernel without it, or
//! anybody on the host who makes the kernel believe that nobody listens (the count of listeners is global, and since
//! kernel 6.6 every user can take it down). So its silence is never trusted: a subscription counts when it was
//! acknowledged *and* the kernel told us of a new name that we gave ourselves; the latter is repeated for as long as
//! the subscription stands.
//!
//! Every step is in the order that works on every kernel: the filter of kernel 6.6 also swallows acknowledgements, so
//! the plain subscription comes first.

use crate::source::{Fate, Hint, Kind, Lost, Name, Source};
use crate::wire::{self, Ask, ConnectorId, Event, at};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::netlink::{CONNECTOR, SocketAddrNetlink};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, bind, recvfrom, sendto, sockopt,
};
use socket2::{SockFilter, SockRef};
use std::collections::VecDeque;
use std::ffi::CString;
use std::time::{Duration, Instant};

/// Bytes of the receive buffer. An event takes 832 of them, so this is more than a second of the heaviest storm that
/// was seen (18,000 starts a second). They are not used until events wait.
const RECEIVE_BYTES: usize = 8 << 20;

/// How long an acknowledgement may take; it is queued before the request returns.
const ACKNOWLEDGE: Duration = Duration::from_millis(250);

/// How long a heartbeat may take; it is queued before the new name is in force.
const BEAT: Duration = Duration::from_millis(100);

/// Heartbeats that must be missed in a row.
const BEATS: u8 = 2;

/// How long the first heartbeat is repeated while events are lost.
const OPENING: Duration = Duration::from_secs(2);

/// Time between heartbeats.
const REST: Duration = Duration::from_secs(5);

/// Events that are taken before they are looked at, while more come in.
const BATCH: usize = 4096;

/// How long a process without a command line is left alone: it may be in the middle of an `execve`.
const BLANK: Duration = Duration::from_micros(200);

/// How long events are left to gather while many come in. It halves the cost of a storm.
const GATHER: Duration = Duration::from_millis(1);

/// Why the proc connector cannot be used, as far as it can be told from here.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Unusable {
    /// `socket`: EPROTONOSUPPORT.
    #[error("this kernel has no connector: it needs CONFIG_CONNECTOR=y and CONFIG_PROC_EVENTS=y")]
    NoConnector,
    /// `bind`: EPERM.
    #[error("the kernel refuses to let us listen: before 6.6 it needs the capability NET_ADMIN")]
    NotPermitted,
    /// `sendto`: ECONNREFUSED.
    #[error("this is not the host's network namespace, where alone the connector is: set hostNetwork: true")]
    OtherNetwork,
    /// No acknowledgement. The kernel sends none either while the count of listeners is below one.
    #[error(
        "the kernel does not acknowledge: set hostPID: true and hostUsers: true, since it answers in the host's pid and \
         user namespace alone; on the host itself, either it lacks CONFIG_PROC_EVENTS=y, or somebody has taken the \
         count of listeners below zero"
    )]
    NotAcknowledged,
    /// An acknowledgement with an error.
    #[error("the kernel refuses the subscription ({0}): before 6.6 it needs the capability NET_ADMIN")]
    Refused(Errno),
    /// Acknowledged, and yet no heartbeat.
    #[error(
        "the kernel has acknowledged and then tells nothing: somebody on this host has taken the count of listeners \
         down, or the kernel is 6.6.13 to 6.6.17"
    )]
    Silent,
    /// Anything else.
    #[error("cannot {0}: {1}")]
    System(&'static str, Errno),
}

/// How to listen.
#[derive(Debug, Clone, Copy)]
pub struct Settings {
    /// To which connector.
    pub connector: ConnectorId,
    /// Bytes of the receive buffer.
    pub receive_bytes: usize,
    /// Time between heartbeats.
    pub rest: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self { connector: wire::PROC, receive_bytes: RECEIVE_BYTES, rest: REST }
    }
}

/// A subscription that has been heard to work.
pub struct Connector {
    socket: Socket,
    settings: Settings,
    own: u32,
    beat: Beat,
    again: VecDeque<(Instant, Hint)>,
    rate: Rate,
}

impl Connector {
    /// Subscribes and hears whether it works. The calling thread takes another name for it, and must be the one that
    /// drains it and not the first of the process.
    pub fn open(settings: Settings) -> Result<Self, Unusable> {
        let mut socket = Socket::open(settings)?;
        socket.subscribe()?;
        let own = std::process::id();
        SockRef::from(&socket.fd)
            .attach_filter(&filter(own))
            .map_err(|error| Unusable::System("attach the socket filter", errno(&error)))?;
        socket.send(Ask::ListenWanted, random()?)?;
        let beat = Beat::Resting { until: Instant::now() };
        let mut this = Self { socket, settings, own, beat, again: VecDeque::new(), rate: Rate::default() };
        this.hear_heartbeat()?;
        Ok(this)
    }

    /// What is heard meanwhile is thrown away: a full scan follows.
    fn hear_heartbeat(&mut self) -> Result<(), Unusable> {
        let mut ignored = Vec::new();
        let give_up = Instant::now() + OPENING;
        loop {
            let now = Instant::now();
            match self.drain(now, &mut ignored) {
                // The heartbeat may be among what was lost: the next is given.
                Err(Lost::Hints) if now < give_up => continue,
                // A host on which nothing but overflows comes is heard all the same; the heartbeat goes on.
                Ok(()) | Err(Lost::Hints) => {}
                Err(Lost::Source(why)) => return Err(why),
            }
            match self.beat {
                Beat::Resting { .. } => return Ok(()),
                Beat::Waiting { until, .. } => wait(&self.socket.fd, until.saturating_duration_since(now)),
            }
        }
    }

    /// Takes every event that waits, up to [`BATCH`] if more come in meanwhile; whether none is left, and whether some
    /// were lost.
    fn receive(&mut self, hints: &mut Vec<Hint>) -> Result<Received, Errno> {
        let mut received = Received { events: 0, emptied: false, overflowed: false };
        // After an overflow the kernel queues nothing new until the queue is empty: then there is no limit.
        while received.overflowed || received.events < BATCH {
            let event = match self.socket.receive() {
                Ok(event) => event,
                Err(Errno::AGAIN) => {
                    received.emptied = true;
                    break;
                }
                Err(Errno::NOBUFS) => {
                    received.overflowed = true;
                    continue;
                }
                Err(Errno::INTR) => continue,
                Err(error) => return Err(error),
            };
            received.events += 1;
            match event {
                Event::Exec { tgid } => hints.push(Hint { pid: tgid, name: None, looks: 0 }),
                Event::Renamed { tgid, name, .. } if tgid == self.own => {
                    self.beat.heard(name, Instant::now() + self.settings.rest);
                }
                Event::Renamed { pid, tgid, name } if pid == tgid => {
                    hints.push(Hint { pid, name: Some(name), looks: 0 });
                }
                Event::Renamed { .. } | Event::Ack { .. } | Event::Other => {}
            }
        }
        Ok(received)
    }

    /// Gives a sign, or finds that none was heard.
    fn keep_beating(&mut self, now: Instant) -> Result<(), Unusable> {
        let missed = match self.beat {
            Beat::Resting { until } | Beat::Waiting { until, .. } if now < until => return Ok(()),
            Beat::Resting { .. } => 0,
            Beat::Waiting { missed, .. } => missed + 1,
        };
        if missed >= BEATS {
            // It is our subscription that somebody counted down. To end it would count it down once more.
            self.socket.listens = false;
            return Err(Unusable::Silent);
        }
        let name = format!("5spot-{:08x}", random()?);
        let text = CString::new(name.as_str()).unwrap_or_default();
        rustix::thread::set_name(&text).map_err(|error| Unusable::System("rename a thread", error))?;
        self.beat = Beat::Waiting { name: Name::new(name.as_bytes()), until: now + BEAT, missed };
        Ok(())
    }
}

impl Source for Connector {
    fn kind(&self) -> Kind {
        Kind::Netlink
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.socket.fd.as_fd())
    }

    fn due(&self) -> Instant {
        let (Beat::Resting { until } | Beat::Waiting { until, .. }) = self.beat;
        self.again.front().map_or(until, |(again, _)| until.min(*again))
    }

    fn drain(&mut self, now: Instant, hints: &mut Vec<Hint>) -> Result<(), Lost> {
        if self.rate.is_high(now) {
            std::thread::sleep(GATHER);
        }
        while let Some((_, hint)) = self.again.pop_front_if(|(due, _)| *due <= now) {
            hints.push(hint);
        }
        let failed = |error| Lost::Source(Unusable::System("receive events", error));
        let received = self.receive(hints).map_err(failed)?;
        self.rate.note(received.events, now);
        if received.overflowed {
            // The heartbeat may be among what was lost.
            self.beat = Beat::Resting { until: now };
            return Err(Lost::Hints);
        }
        if received.emptied {
            self.keep_beating(now).map_err(Lost::Source)?;
        }
        Ok(())
    }

    fn looked(&mut self, hint: Hint, fate: Fate, now: Instant) {
        if fate == Fate::Blank && hint.looks == 0 {
            self.again.push_back((now + BLANK, Hint { looks: 1, ..hint }));
        }
    }
}

struct Received {
    events: usize,
    emptied: bool,
    overflowed: bool,
}

/// Whether the kernel still tells: we give ourselves a new name and hear of it.
#[derive(Debug, Clone, Copy)]
enum Beat {
    Resting { until: Instant },
    Waiting { name: Name, until: Instant, missed: u8 },
}

impl Beat {
    fn heard(&mut self, heard: Name, rest_until: Instant) {
        if let Self::Waiting { name, .. } = self
            && *name == heard
        {
            *self = Self::Resting { until: rest_until };
        }
    }
}

/// How many events come in.
#[derive(Debug, Default)]
struct Rate {
    since: Option<Instant>,
    events: usize,
    high: bool,
}

impl Rate {
    /// The time over which events are counted.
    const WINDOW: Duration = Duration::from_millis(10);
    /// Events in it above which they are left to gather: 1000 a second.
    const HIGH: usize = 10;

    fn note(&mut self, events: usize, now: Instant) {
        match self.since.map(|since| now.saturating_duration_since(since)) {
            Some(age) if age < Self::WINDOW => self.events += events,
            age => {
                self.high = age.is_some_and(|age| age < 2 * Self::WINDOW) && self.events > Self::HIGH;
                (self.since, self.events) = (Some(now), events);
            }
        }
    }

    fn is_high(&self, now: Instant) -> bool {
        let recent = |since| now.saturating_duration_since(since) < 2 * Self::WINDOW;
        self.high && self.since.is_some_and(recent)
    }
}

/// A socket that is counted as a listener from its acknowledgement to its end.
struct Socket {
    fd: OwnedFd,
    connector: ConnectorId,
    listens: bool,
}

impl Socket {
    fn open(settings: Settings) -> Result<Self, Unusable> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let opened =
            rustix::net::socket_with(AddressFamily::NETLINK, SocketType::DGRAM, flags, Some(CONNECTOR));
        let fd = opened.map_err(|error| match error {
            Errno::PROTONOSUPPORT => Unusable::NoConnector,
            error => Unusable::System("open a netlink socket", error),
        })?;
        // To go beyond net.core.rmem_max takes NET_ADMIN; without it, the best that is to be had.
        if sockopt::set_socket_recv_buffer_size_force(&fd, settings.receive_bytes).is_err() {
            let _ = sockopt::set_socket_recv_buffer_size(&fd, settings.receive_bytes);
        }
        bind(&fd, &SocketAddrNetlink::new(0, wire::GROUP)).map_err(|error| match error {
            Errno::PERM => Unusable::NotPermitted,
            error => Unusable::System("bind to the group of process events", error),
        })?;
        Ok(Self { fd, connector: settings.connector, listens: false })
    }

    /// Asks for all events and waits for the acknowledgement, which others may get too: it is known by its number.
    fn subscribe(&mut self) -> Result<(), Unusable> {
        let number = random()?;
        self.send(Ask::Listen, number)?;
        let until = Instant::now() + ACKNOWLEDGE;
        loop {
            match self.receive() {
                Ok(Event::Ack { ack, error }) if ack == number.wrapping_add(1) => {
                    if error != 0 {
                        let error = i32::try_from(error).unwrap_or_default();
                        return Err(Unusable::Refused(Errno::from_raw_os_error(error)));
                    }
                    self.listens = true;
                    return Ok(());
                }
                Ok(_) | Err(Errno::NOBUFS | Errno::INTR) => {}
                Err(Errno::AGAIN) => {
                    let left = until.saturating_duration_since(Instant::now());
                    if left.is_zero() {
                        return Err(Unusable::NotAcknowledged);
                    }
                    wait(&self.fd, left);
                }
                Err(error) => return Err(Unusable::System("receive the acknowledgement", error)),
            }
        }
    }

    fn send(&self, ask: Ask, number: u32) -> Result<(), Unusable> {
        let message = wire::request(self.connector, ask, number);
        let kernel = SocketAddrNetlink::new(0, 0);
        match sendto(&self.fd, &message, SendFlags::empty(), &kernel) {
            Ok(_) => Ok(()),
            Err(Errno::CONNREFUSED) => Err(Unusable::OtherNetwork),
            Err(Errno::PERM) => Err(Unusable::NotPermitted),
            Err(error) => Err(Unusable::System("send to the connector", error)),
        }
    }

    fn receive(&self) -> Result<Event, Errno> {
        let mut buffer = [0; 2 * wire::EVENT_BYTES];
        let (_, length, from) = recvfrom(&self.fd, &mut buffer, RecvFlags::empty())?;
        let from = from.and_then(|from| SocketAddrNetlink::try_from(from).ok());
        // Only the kernel has the port 0.
        if from.is_none_or(|from| from.pid() != 0) {
            return Ok(Event::Other);
        }
        Ok(wire::parse(&buffer[..length.min(buffer.len())]))
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        // A listener that goes without a word is counted for ever, and the kernel goes on to tell of every process.
        if self.listens {
            let _ = self.send(Ask::Ignore, 0);
        }
    }
}

/// Lets through what can be a hint or a heartbeat: new images, new names of processes, and new names of our own
/// threads. The kernel's own filter, where there is one, cannot tell threads from processes; a JVM names them all.
fn filter(own: u32) -> [SockFilter; 10] {
    const LOAD: u16 = 0x20; // BPF_LD | BPF_W | BPF_ABS
    const TO_X: u16 = 0x07; // BPF_MISC | BPF_TAX
    const IS: u16 = 0x15; // BPF_JMP | BPF_JEQ | BPF_K
    const IS_X: u16 = 0x1d; // BPF_JMP | BPF_JEQ | BPF_X
    const RETURN: u16 = 0x06; // BPF_RET | BPF_K
    let load = |at: usize| SockFilter::new(LOAD, 0, 0, u32::try_from(at).unwrap_or_default());
    // Classic BPF loads words as the network has them.
    let is = |value: u32, yes, no| SockFilter::new(IS, yes, no, value.to_be());
    [
        load(at::WHAT),
        is(wire::EXEC, 7, 0),
        is(wire::COMM, 0, 5),
        load(at::PID),
        SockFilter::new(TO_X, 0, 0, 0),
        load(at::TGID),
        SockFilter::new(IS_X, 2, 0, 0),
        is(own, 1, 0),
        SockFilter::new(RETURN, 0, 0, 0),
        SockFilter::new(RETURN, 0, 0, u32::MAX),
    ]
}

/// Waits until something can be read, or the time is over.
fn wait(fd: &OwnedFd, time: Duration) {
    let timeout = Timespec::try_from(time).ok();
    // Whatever woke us up: who waits looks himself.
    let _ = poll(&mut [PollFd::new(fd, PollFlags::IN)], timeout.as_ref());
}

fn random() -> Result<u32, Unusable> {
    let mut bytes = [0; 4];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())
        .map_err(|error| Unusable::System("get a random number", error))?;
    Ok(u32::from_ne_bytes(bytes))
}

fn errno(error: &std::io::Error) -> Errno {
    Errno::from_io_error(error).unwrap_or(Errno::IO)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_gather_only_while_many_come_in() {
        let start = Instant::now();
        let at = |milliseconds| start + Duration::from_millis(milliseconds);
        let mut rate = Rate::default();
        for milliseconds in 0..=10 {
            rate.note(1, at(milliseconds));
        }
        assert!(!rate.is_high(at(10)), "ten in ten milliseconds");
        for milliseconds in 11..=20 {
            rate.note(2, at(milliseconds));
        }
        assert!(rate.is_high(at(20)), "twenty in ten milliseconds");
        assert!(!rate.is_high(at(50)), "a pause");
        rate.note(1, at(60));
        assert!(!rate.is_high(at(60)), "one after a pause");
    }

    #[test]
    fn only_the_name_that_was_given_is_a_heartbeat() {
        let now = Instant::now();
        let name = Name::new(b"5spot-1");
        let mut beat = Beat::Waiting { name, until: now, missed: 0 };
        beat.heard(Name::new(b"5spot-2"), now);
        assert!(matches!(beat, Beat::Waiting { .. }));
        beat.heard(name, now);
        assert!(matches!(beat, Beat::Resting { .. }));
    }
}
