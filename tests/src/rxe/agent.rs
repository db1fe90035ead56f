//! The host's end of the guest's agent: one TCP connection is one command.
//!
//! The protocol is in `tests/guest/agent`.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpStream};
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use crate::netns;
use crate::place::Job;
use crate::process::{Collector, Output, wait_until};

/// The byte before the three digits of the exit status.
const STATUS_MARK: u8 = 0x1e;
/// How long the agent may take to answer a connection.
const ANSWER: Duration = Duration::from_secs(10);

/// Where a guest's agent is reached: a port on the loopback of a namespace.
#[derive(Clone, Debug)]
pub struct Link {
    /// The namespace that QEMU runs in.
    pub netns: String,
    /// The port that QEMU forwards to the agent.
    pub port: u16,
}

impl Link {
    /// Starts a shell command in the guest, with `input` as its standard input. The guest kills
    /// it after `limit`.
    ///
    /// # Errors
    /// When the agent does not answer.
    pub fn start(&self, command: &str, input: &[u8], limit: Duration) -> Result<GuestJob> {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, self.port));
        let mut stream =
            netns::enter(&self.netns, || TcpStream::connect_timeout(&address, ANSWER))??;
        stream.set_read_timeout(Some(ANSWER))?;
        let seconds = limit.as_secs().max(1);
        let call = format!("{seconds} {}\n", base64(command.as_bytes()));
        stream.write_all(call.as_bytes()).context("the guest's agent hung up")?;
        let group = read_line(&mut stream).context("the guest's agent does not answer")?;
        let group = group.trim().parse().context("the guest's agent sent no process group")?;
        stream.write_all(input).context("the guest's command did not read its input")?;
        stream.shutdown(Shutdown::Write)?;
        stream.set_read_timeout(None)?;
        Ok(GuestJob {
            link: self.clone(),
            title: command.to_owned(),
            group,
            output: Collector::start(stream, None::<std::io::Sink>),
            began: Instant::now(),
            limit,
        })
    }
}

/// A command that runs in the guest; killed there on drop.
pub struct GuestJob {
    link: Link,
    title: String,
    group: u32,
    output: Collector,
    began: Instant,
    limit: Duration,
}

impl GuestJob {
    /// Waits for a successful end and returns the output as it is.
    ///
    /// # Errors
    /// As [`Job::wait`], and when the exit status is not zero.
    pub fn wait_bytes(mut self) -> Result<Vec<u8>> {
        self.wait_end()?;
        match self.exit_code()? {
            Some(0) => Ok(split_status(self.output.bytes()).0),
            code => bail!("`{}` ended with {code:?}: {}", self.title, self.said()),
        }
    }

    fn wait_end(&mut self) -> Result<()> {
        let what = format!("end of `{}` in the guest", self.title);
        // The guest enforces the limit; this one is for a guest that is stuck.
        let patience = self.limit.saturating_sub(self.began.elapsed()) + ANSWER;
        wait_until(&what, patience, || Ok(self.exit_code()?.is_some()))
    }

    /// Output and exit status, once the connection has ended.
    fn result(&self) -> Option<(Vec<u8>, Option<i32>)> {
        self.output.has_ended().then(|| split_status(self.output.bytes()))
    }
}

impl Job for GuestJob {
    fn exit_code(&mut self) -> Result<Option<i32>> {
        match self.result() {
            None => Ok(None),
            Some((_, Some(code))) => Ok(Some(code)),
            Some((output, None)) => {
                let output = String::from_utf8_lossy(&output);
                bail!("the guest hung up during `{}`: {output}", self.title)
            }
        }
    }

    fn said(&self) -> String {
        String::from_utf8_lossy(&split_status(self.output.bytes()).0).into_owned()
    }

    fn wait(mut self: Box<Self>) -> Result<Output> {
        self.wait_end()?;
        let code = self.exit_code()?.context("a guest's command ended without a status")?;
        Ok(Output {
            title: format!("guest: {}", self.title),
            status: ExitStatus::from_raw(code << 8),
            stdout: self.said(),
            stderr: String::new(),
            elapsed: self.began.elapsed(),
            shown: false,
        })
    }
}

impl Drop for GuestJob {
    fn drop(&mut self) {
        if !self.output.has_ended() {
            // When the guest itself is gone there is nothing left to kill.
            let kill = format!("kill -KILL -{}", self.group);
            if let Ok(killer) = self.link.start(&kill, &[], ANSWER) {
                let _ = killer.output.wait_end(Duration::from_secs(2));
            }
        }
    }
}

/// Separates what a command printed from the status behind it.
fn split_status(mut bytes: Vec<u8>) -> (Vec<u8>, Option<i32>) {
    let status = match bytes[..] {
        [.., STATUS_MARK, a, b, c] => {
            std::str::from_utf8(&[a, b, c]).ok().and_then(|digits| digits.parse().ok())
        }
        _ => None,
    };
    if status.is_some() {
        bytes.truncate(bytes.len() - 4);
    }
    (bytes, status)
}

/// A short line, byte by byte: what follows belongs to the command.
fn read_line(stream: &mut TcpStream) -> Result<String> {
    let mut line = Vec::new();
    let mut byte = [0];
    while !line.ends_with(b"\n") {
        stream.read_exact(&mut byte)?;
        line.push(byte[0]);
        ensure!(line.len() < 32, "a line of the agent is too long");
    }
    Ok(String::from_utf8_lossy(&line).into_owned())
}

/// RFC 4648 base64, which busybox decodes: a command may contain any byte.
fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for chunk in bytes.chunks(3) {
        let byte = |at: usize| u32::from(chunk.get(at).copied().unwrap_or(0));
        let group = byte(0) << 16 | byte(1) << 8 | byte(2);
        for place in 0..4 {
            let digit = DIGITS[(group >> (18 - 6 * place) & 63) as usize];
            text.push(if place <= chunk.len() { char::from(digit) } else { '=' });
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_pads_to_groups_of_four() {
        assert_eq!(base64(b""), "");
        assert_eq!(base64(b"f"), "Zg==");
        assert_eq!(base64(b"fo"), "Zm8=");
        assert_eq!(base64(b"foobar"), "Zm9vYmFy");
    }

    #[test]
    fn the_status_is_the_last_four_bytes() {
        assert_eq!(split_status(b"out\n\x1e003".to_vec()), (b"out\n".to_vec(), Some(3)));
        assert_eq!(split_status(b"out\n".to_vec()), (b"out\n".to_vec(), None));
    }
}
