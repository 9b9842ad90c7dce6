//! One thread that notices processes and judges them.
//!
//! Whatever the source, the order is the same: first it tells, then everything that runs already is looked at, so that
//! nothing falls in between. Everything is looked at again every ten seconds, after every loss, and with every new
//! configuration. A source that falls silent is replaced; with [`Choice::Auto`] by the next best, and the better one is
//! tried again every minute.
//!
//! There is no runtime here: between the kernel's word and the verdict is one wake-up.

use crate::connector::{self, Connector, Unusable};
use crate::metrics::{ByCause, Metrics};
use crate::proc_fs::{ProcError, ProcFs};
use crate::range_poll::RangePoll;
use crate::source::{Hint, Kind, Lost, Source};
use fivespot_core::process::Patterns;
use jiff::Timestamp;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How often everything is looked at: what no source tells of, such as a command line that a process rewrites, is
/// found within this time.
const RESCAN: Duration = Duration::from_secs(10);

/// How often a better source is tried again.
const RETRY: Duration = Duration::from_mins(1);

/// How often a source that fell silent is opened anew before the next best takes over.
const REOPEN: usize = 3;

/// Which source is wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Choice {
    /// The best that works.
    Auto,
    /// This one or none.
    Only(Kind),
}

/// How to look.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Root of `/proc`.
    pub proc_root: PathBuf,
    /// With what.
    pub choice: Choice,
    /// How to listen to the kernel.
    pub connector: connector::Settings,
    /// How often a source that is better than the one in use is tried again.
    pub retry: Duration,
}

impl Settings {
    /// As a host is looked at.
    pub fn new(proc_root: PathBuf, choice: Choice) -> Self {
        Self { proc_root, choice, connector: connector::Settings::default(), retry: RETRY }
    }
}

/// What to look for.
#[derive(Debug, Clone)]
pub struct Orders {
    /// The patterns.
    pub patterns: Patterns,
    /// Longest time between two looks of a source that polls.
    pub interval: Duration,
}

/// What the detector tells.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Report {
    /// A process that matches.
    Seen(Sighting),
    /// It cannot go on.
    Failed(String),
}

/// A process that matches.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sighting {
    /// The pattern.
    pub pattern: Arc<str>,
    /// When.
    pub at: Timestamp,
}

/// A detector that cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// No `/proc`.
    #[error(transparent)]
    Proc(#[from] ProcError),
    /// The source that was asked for does not work.
    #[error("--detector={kind} cannot work here: {why}. With --detector=auto polling takes over")]
    Unusable {
        /// Which.
        kind: Kind,
        /// Why.
        why: Unusable,
    },
    /// The thread could not be started, or ended.
    #[error("cannot start the detector's thread: {0}")]
    Thread(std::io::Error),
}

/// A running detector. It ends, and unsubscribes, when it is dropped.
pub struct Detector {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Detector {
    /// Starts it, without orders. A source that was asked for and does not work is an error here.
    pub fn start(
        settings: Settings,
        metrics: Metrics,
        tell: impl FnMut(Report) + Send + 'static,
    ) -> Result<Self, StartError> {
        let system = |error: rustix::io::Errno| StartError::Thread(error.into());
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(system)?;
        let (turned, has_stepped_down) = (Mutex::new(Instant::now()), AtomicBool::new(false));
        let shared = Arc::new(Shared { wish: Mutex::default(), turned, has_stepped_down, bell });
        let (tried, outcome) = mpsc::channel();
        let work = {
            let shared = Arc::clone(&shared);
            move || {
                // In its own thread, since a heartbeat renames the thread that listens.
                match Work::new(settings, metrics, Box::new(tell), shared) {
                    Ok(work) => {
                        let _ = tried.send(Ok(()));
                        work.run();
                    }
                    Err(error) => {
                        let _ = tried.send(Err(error));
                    }
                }
            }
        };
        let thread = std::thread::Builder::new()
            .name("detector".to_owned())
            .spawn(work)
            .map_err(StartError::Thread)?;
        let ended = |_| StartError::Thread(std::io::Error::other("it ended"));
        outcome.recv().map_err(ended)??;
        Ok(Self { shared, thread: Mutex::new(Some(thread)) })
    }

    /// Looks for something else from now on, or for nothing.
    pub fn order(&self, orders: Option<Orders>) {
        let change = orders.map_or(Change::ToNothing, |orders| Change::To(Arc::new(orders)));
        self.shared.ask(|wish| wish.orders = change);
    }

    /// Looks at everything once more.
    pub fn scan(&self) {
        self.shared.ask(|wish| wish.scan = true);
    }

    /// Unsubscribes and ends; returns when that is done.
    pub fn stop(&self) {
        self.shared.ask(|wish| wish.stop = true);
        if let Some(thread) = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take() {
            // A thread that panicked has nothing left to unsubscribe.
            let _ = thread.join();
        }
    }

    /// Since when it has not come round. It does at least every [`RESCAN`].
    pub fn stuck_for(&self) -> Duration {
        self.shared.turned.lock().unwrap_or_else(PoisonError::into_inner).elapsed()
    }

    /// Whether it polls although events were allowed: programs that live shorter than a poll are missed. Polling that was
    /// asked for is no step down.
    pub fn has_stepped_down(&self) -> bool {
        self.shared.has_stepped_down.load(Ordering::Relaxed)
    }
}

impl Drop for Detector {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Looks at everything once, and says which pattern matches first.
pub fn look_once(proc_root: &std::path::Path, patterns: &Patterns) -> Result<Option<Arc<str>>, ProcError> {
    let fs = ProcFs::open(proc_root)?;
    Ok(scan(&fs, patterns))
}

/// The first process, by number, that matches.
fn scan(fs: &ProcFs, patterns: &Patterns) -> Option<Arc<str>> {
    let own = std::process::id();
    let pids = fs.pids().unwrap_or_default();
    let judge = |pid| patterns.judge(own, &mut fs.process(pid, None));
    pids.into_iter().find_map(judge).map(|found| found.pattern)
}

/// What the thread and its owner share.
struct Shared {
    wish: Mutex<Wish>,
    turned: Mutex<Instant>,
    has_stepped_down: AtomicBool,
    bell: OwnedFd,
}

/// Whether something else is to be looked for.
#[derive(Default)]
enum Change {
    #[default]
    None,
    To(Arc<Orders>),
    ToNothing,
}

/// What is asked of the thread and not yet done.
#[derive(Default)]
struct Wish {
    orders: Change,
    scan: bool,
    stop: bool,
}

impl Shared {
    fn wish(&self) -> MutexGuard<'_, Wish> {
        self.wish.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn ask(&self, change: impl FnOnce(&mut Wish)) {
        change(&mut self.wish());
        // The counter is never near its limit, so the write cannot fail.
        let _ = rustix::io::write(&self.bell, &1u64.to_ne_bytes());
    }

    fn take(&self) -> Wish {
        *self.turned.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
        let _ = rustix::io::read(&self.bell, &mut [0; 8]);
        std::mem::take(&mut self.wish())
    }
}

/// Why everything is looked at.
#[derive(Debug, Clone, Copy)]
enum Cause {
    Orders,
    Source,
    Loss,
    Asked,
    Interval,
}

impl Cause {
    fn word(self) -> &'static str {
        match self {
            Self::Orders => "orders",
            Self::Source => "source",
            Self::Loss => "loss",
            Self::Asked => "asked",
            Self::Interval => "interval",
        }
    }
}

/// The thread.
struct Work {
    settings: Settings,
    fs: Arc<ProcFs>,
    metrics: Metrics,
    tell: Box<dyn FnMut(Report) + Send>,
    shared: Arc<Shared>,
    orders: Option<Arc<Orders>>,
    source: Option<Box<dyn Source>>,
    /// Why the better source does not work, as it was last said.
    said: Option<Unusable>,
    retry_at: Instant,
    scan_at: Instant,
}

impl Work {
    fn new(
        settings: Settings,
        metrics: Metrics,
        tell: Box<dyn FnMut(Report) + Send>,
        shared: Arc<Shared>,
    ) -> Result<Self, StartError> {
        let fs = Arc::new(ProcFs::open(&settings.proc_root)?);
        if !fs.is_in_initial_pid_namespace() {
            tracing::warn!(
                "this is not the pid namespace of a host: only its own processes are seen; in a pod, set hostPID: true"
            );
        }
        let now = Instant::now();
        let (retry_at, scan_at) = (now + settings.retry, now + RESCAN);
        let (orders, source, said) = (None, None, None);
        let mut work = Self { settings, fs, metrics, tell, shared, orders, source, said, retry_at, scan_at };
        // Whether it works is said now, and not only when there is something to look for.
        if let Err(why) = work.open() {
            return Err(StartError::Unusable { kind: Kind::Netlink, why });
        }
        work.rest();
        Ok(work)
    }

    fn run(mut self) {
        if let Err(why) = self.turn_until_stopped() {
            let kind = Kind::Netlink;
            (self.tell)(Report::Failed(StartError::Unusable { kind, why }.to_string()));
        }
    }

    fn turn_until_stopped(&mut self) -> Result<(), Unusable> {
        let mut hints = Vec::new();
        loop {
            let wish = self.shared.take();
            if wish.stop {
                return Ok(());
            }
            match wish.orders {
                Change::To(orders) => self.follow(orders)?,
                Change::ToNothing => self.rest(),
                Change::None if wish.scan => self.scan(Cause::Asked),
                Change::None => {}
            }
            self.hear(&mut hints)?;
            let now = Instant::now();
            if now >= self.scan_at {
                self.scan(Cause::Interval);
            }
            if now >= self.retry_at {
                self.step_up();
            }
            self.wait();
        }
    }

    /// Takes new orders.
    fn follow(&mut self, orders: Arc<Orders>) -> Result<(), Unusable> {
        self.orders = Some(orders);
        // A poll takes its pace from the orders.
        if self.source.as_ref().is_none_or(|source| source.kind() == Kind::Poll) {
            self.open()?;
        }
        self.scan(Cause::Orders);
        Ok(())
    }

    /// Hears the source and looks at what it tells of.
    fn hear(&mut self, hints: &mut Vec<Hint>) -> Result<(), Unusable> {
        let Some(source) = &mut self.source else { return Ok(()) };
        hints.clear();
        let heard = source.drain(Instant::now(), hints);
        for hint in hints.iter() {
            self.look(*hint);
        }
        match heard {
            Ok(()) => {}
            Err(Lost::Hints) => {
                self.metrics.overflows.inc();
                tracing::debug!("events were lost: looking at every process");
                self.scan(Cause::Loss);
            }
            Err(Lost::Source(why)) => {
                if why == Unusable::Silent {
                    self.metrics.heartbeats_lost.inc();
                }
                self.replace(why)?;
                self.scan(Cause::Loss);
            }
        }
        Ok(())
    }

    fn look(&mut self, hint: Hint) {
        let Some(orders) = &self.orders else { return };
        let mut process = self.fs.process(hint.pid, hint.name);
        let found = orders.patterns.judge(std::process::id(), &mut process);
        match (found, &mut self.source) {
            (Some(found), _) => self.saw(found.pattern),
            (None, Some(source)) => source.looked(hint, process.fate(), Instant::now()),
            (None, None) => {}
        }
    }

    fn scan(&mut self, cause: Cause) {
        self.scan_at = Instant::now() + RESCAN;
        let Some(orders) = &self.orders else { return };
        self.metrics.scans.get_or_create(&ByCause { cause: cause.word() }).inc();
        if let Some(pattern) = scan(&self.fs, &orders.patterns) {
            self.saw(pattern);
        }
    }

    fn saw(&mut self, pattern: Arc<str>) {
        self.metrics.matches.inc();
        (self.tell)(Report::Seen(Sighting { pattern, at: Timestamp::now() }));
    }

    /// Opens the best source that is allowed and works.
    fn open(&mut self) -> Result<(), Unusable> {
        // Before another is opened: two would be counted as two listeners.
        self.source = None;
        let source: Box<dyn Source> = match self.settings.choice {
            Choice::Only(Kind::Poll) => self.poll()?,
            Choice::Only(Kind::Netlink) => Box::new(Connector::open(self.settings.connector)?),
            Choice::Auto => match Connector::open(self.settings.connector) {
                Ok(connector) => Box::new(connector),
                Err(why) => {
                    self.metrics.step_downs.inc();
                    if self.said != Some(why) {
                        tracing::warn!(
                            "polling for processes, since the kernel's events cannot be used: {why}"
                        );
                        self.said = Some(why);
                    }
                    self.poll()?
                }
            },
        };
        self.retry_at = Instant::now() + self.settings.retry;
        self.use_source(source);
        Ok(())
    }

    fn poll(&self) -> Result<Box<dyn Source>, Unusable> {
        let interval = self.orders.as_ref().map_or(RESCAN, |orders| orders.interval);
        let failed = |error| Unusable::System("read the last process number", error);
        Ok(Box::new(RangePoll::new(Arc::clone(&self.fs), interval).map_err(failed)?))
    }

    fn use_source(&mut self, source: Box<dyn Source>) {
        let has_stepped_down = self.settings.choice == Choice::Auto && source.kind() == Kind::Poll;
        self.shared.has_stepped_down.store(has_stepped_down, Ordering::Relaxed);
        self.metrics.uses(Some(source.kind()));
        self.source = Some(source);
    }

    /// Looks for nothing, and lets the kernel know.
    fn rest(&mut self) {
        (self.orders, self.source) = (None, None);
        self.shared.has_stepped_down.store(false, Ordering::Relaxed);
        self.metrics.uses(None);
    }

    /// Opens a source anew that fell silent, or the next best.
    fn replace(&mut self, why: Unusable) -> Result<(), Unusable> {
        self.source = None;
        for _ in 0..REOPEN {
            if let Ok(connector) = Connector::open(self.settings.connector) {
                tracing::warn!("the kernel's events broke off and were subscribed anew: {why}");
                self.use_source(Box::new(connector));
                return Ok(());
            }
        }
        self.open()
    }

    /// Goes back to the better source if it works again.
    fn step_up(&mut self) {
        self.retry_at = Instant::now() + self.settings.retry;
        let polls = self.source.as_ref().is_some_and(|source| source.kind() == Kind::Poll);
        if self.settings.choice != Choice::Auto || !polls {
            return;
        }
        if let Ok(connector) = Connector::open(self.settings.connector) {
            tracing::info!("the kernel's events can be used again");
            self.said = None;
            self.use_source(Box::new(connector));
            self.scan(Cause::Source);
        }
    }

    /// Waits for the source, the owner or the clock.
    fn wait(&self) {
        let due = self.source.as_ref().map(|source| source.due().min(self.retry_at));
        let until = due.map_or(self.scan_at, |due| due.min(self.scan_at));
        let timeout = Timespec::try_from(until.saturating_duration_since(Instant::now())).ok();
        let mut fds = vec![PollFd::new(&self.shared.bell, PollFlags::IN)];
        if let Some(fd) = self.source.as_ref().and_then(|source| source.fd()) {
            fds.push(PollFd::from_borrowed_fd(fd, PollFlags::IN));
        }
        // Whatever woke us up, the next turn looks at everything that can have.
        let _ = poll(&mut fds, timeout.as_ref());
    }
}
