//! Sizes and times of new rsockets: what the administrator's files say, or upstream's defaults.

use std::{fs, path::Path, str::FromStr, sync::OnceLock, time::Duration};

use super::{
    flow::Sizes,
    wire::{compress, expand},
};

const FOLDER: &str = "/etc/rdma/rsocket";
/// Fewer work requests are not enough for control messages and data.
const LEAST_DEPTH: u32 = 16;
/// As many work requests as the field of the private data can count, and one less.
pub(crate) const MOST_DEPTH: u32 = 0xfffe;
/// Both queues of a queue pair of the device are at least as deep.
const DEVICE_DEPTH: u32 = 16_384;
/// Receive rings are two halves of at least so many bytes.
const LEAST_RING: u32 = 4096;
/// Registering more takes long.
const MOST_RING: u32 = 1 << 26;

/// What is the same for all rsockets of the process.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Settings {
    pub(crate) wishes: Wishes,
    /// How long calls that wait look themselves before they sleep.
    pub(crate) polling: Duration,
}

/// What a program, or the administrator, wants of an rsocket.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Wishes {
    pub(crate) sends: u32,
    pub(crate) receives: u32,
    pub(crate) inline: u32,
    pub(crate) mappings: u16,
    pub(crate) receive_bytes: u32,
    pub(crate) send_bytes: u32,
}

impl Wishes {
    /// What is possible of it.
    pub(crate) fn sizes(&self) -> Sizes {
        let depth = |wanted: u32| {
            u16::try_from(wanted.clamp(LEAST_DEPTH, DEVICE_DEPTH)).unwrap_or(LEAST_DEPTH as u16)
        };
        let ring = |wanted: u32| wanted.clamp(LEAST_RING, MOST_RING) & !1;
        Sizes {
            receives: depth(self.receives),
            sends: depth(self.sends),
            receive_bytes: ring(self.receive_bytes),
            send_bytes: ring(self.send_bytes),
            mappings: self.mappings,
        }
    }
}

impl Settings {
    /// Those of this process.
    pub(crate) fn get() -> &'static Self {
        static SETTINGS: OnceLock<Settings> = OnceLock::new();
        SETTINGS.get_or_init(|| Self::load(Path::new(FOLDER)))
    }

    fn load(folder: &Path) -> Self {
        fn number<T: FromStr>(folder: &Path, name: &str, otherwise: T) -> T {
            let text = fs::read_to_string(folder.join(name)).unwrap_or_default();
            let first = text.split_whitespace().next().and_then(|word| word.parse().ok());
            first.unwrap_or(otherwise)
        }
        let mappings = number(folder, "iomap_size", 0_u16);
        Self {
            wishes: Wishes {
                sends: number(folder, "sqsize_default", 384),
                receives: number(folder, "rqsize_default", 384),
                inline: number(folder, "inline_default", 64),
                mappings: expand(compress(mappings)),
                receive_bytes: number(folder, "mem_default", 1 << 17),
                send_bytes: number(folder, "wmem_default", 1 << 17),
            },
            polling: Duration::from_micros(number(folder, "polling_time", 10)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_the_administrator_replace_the_defaults() {
        let folder = std::env::temp_dir().join(format!("rsocket-settings-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let none = Settings::load(&folder);
        let wishes = Wishes {
            sends: 384,
            receives: 384,
            inline: 64,
            mappings: 0,
            receive_bytes: 1 << 17,
            send_bytes: 1 << 17,
        };
        assert_eq!((none.wishes, none.polling), (wishes, Duration::from_micros(10)));
        let files = [("mem_default", "1000000\n"), ("sqsize_default", "x"), ("polling_time", "50")];
        for (name, text) in files {
            fs::write(folder.join(name), text).unwrap();
        }
        let some = Settings::load(&folder);
        fs::remove_dir_all(&folder).unwrap();
        assert_eq!(some.wishes, Wishes { receive_bytes: 1_000_000, ..wishes });
        assert_eq!(some.polling, Duration::from_micros(50));
    }

    #[test]
    fn wishes_are_met_as_far_as_possible() {
        let wishes = Wishes {
            sends: 1,
            receives: u32::MAX,
            inline: 0,
            mappings: 3,
            receive_bytes: 5001,
            send_bytes: 0,
        };
        let sizes = wishes.sizes();
        assert_eq!((sizes.sends, sizes.receives), (16, 16_384));
        assert_eq!((sizes.receive_bytes, sizes.send_bytes, sizes.mappings), (5000, 4096, 3));
    }
}
