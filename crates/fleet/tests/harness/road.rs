//! The road between an operator and its shard, on which things happen.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{JoinHandle, JoinSet};

/// What happens on the road.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Weather {
    /// Nothing.
    Fine,
    /// What the shard says arrives as something else.
    Corrupt,
    /// The shard reads nothing more.
    Deaf,
}

/// Passes on what comes, until it is dropped.
pub(crate) struct Road {
    pub(crate) address: String,
    weather: Arc<AtomicU8>,
    task: JoinHandle<()>,
}

impl Drop for Road {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Road {
    pub(crate) async fn to(shard: &str) -> Self {
        Self::between("127.0.0.1:0", shard).await
    }

    /// The same with a beginning of old.
    pub(crate) async fn between(address: &str, shard: &str) -> Self {
        let listener = TcpListener::bind(address).await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let (weather, shard) = (Arc::new(AtomicU8::new(Weather::Fine as u8)), shard.to_owned());
        let seen = Arc::clone(&weather);
        let task = tokio::spawn(async move {
            // What is under way ends with the road.
            let mut under_way = JoinSet::new();
            while let Ok((operator, _)) = listener.accept().await {
                let Ok(shard) = TcpStream::connect(&shard).await else { continue };
                let (from_operator, to_operator) = operator.into_split();
                let (from_shard, to_shard) = shard.into_split();
                under_way.spawn(pass(from_operator, to_shard, Arc::clone(&seen), Weather::Deaf));
                under_way.spawn(pass(from_shard, to_operator, Arc::clone(&seen), Weather::Corrupt));
            }
        });
        Self { address, weather, task }
    }

    pub(crate) fn weather(&self, weather: Weather) {
        self.weather.store(weather as u8, Ordering::SeqCst);
    }
}

async fn pass(
    mut from: impl AsyncReadExt + Unpin,
    mut to: impl AsyncWriteExt + Unpin,
    weather: Arc<AtomicU8>,
    concerns: Weather,
) {
    let mut bytes = vec![0; 1 << 14];
    loop {
        while concerns == Weather::Deaf && weather.load(Ordering::SeqCst) == Weather::Deaf as u8 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let Ok(count @ 1..) = from.read(&mut bytes).await else { return };
        if concerns == Weather::Corrupt && weather.load(Ordering::SeqCst) == Weather::Corrupt as u8 {
            // Long enough to hit the frame and not only its head.
            bytes[..count].iter_mut().for_each(|byte| *byte ^= 0x5a);
        }
        if to.write_all(&bytes[..count]).await.is_err() {
            return;
        }
    }
}
