//! The terminal: what is drawn there, and which keys come from there.

use super::Source;
use super::draw::draw;
use super::model::Model;
use super::view::{Answer, View};
use super::words::Signs;
use anyhow::{Context, Result};
use ratatui::crossterm::event::{self, Event};
use std::time::Duration;

/// Shows the view until the user quits, is interrupted, or the daemon ends. The terminal is then,
/// and after a panic, as it was before.
pub(super) fn show(source: &mut Source<Model>, mut view: View) -> Result<()> {
    let restore = Restore;
    // Also has a panic restore the terminal, before its message.
    let mut terminal = ratatui::try_init().context("cannot use the terminal")?;
    let signs = Signs::of_locale();
    let mut shown = Ok(());
    loop {
        if let Err(error) = terminal.draw(|frame| draw(frame, &source.to, &view, signs)) {
            shown = Err(error).context("cannot draw");
            break;
        }
        match source.take(FRAME) {
            Ok(true) => {}
            Ok(false) => break,
            Err(error) => {
                shown = Err(error);
                break;
            }
        }
        if answers(source, &mut view)? == Answer::Quit {
            break;
        }
    }
    drop(restore);
    shown
}

/// Takes the keys that were pressed meanwhile. A new size needs no answer but the next picture.
fn answers(source: &Source<Model>, view: &mut View) -> Result<Answer> {
    while event::poll(Duration::ZERO).context("cannot read keys")? {
        if let Event::Key(key) = event::read().context("cannot read keys")?
            && view.key(key, &source.to) == Answer::Quit
        {
            return Ok(Answer::Quit);
        }
    }
    Ok(Answer::Stay)
}

/// Restores the terminal when it is dropped.
struct Restore;

impl Drop for Restore {
    fn drop(&mut self) {
        ratatui::restore();
    }
}

/// How often it is drawn, and keys are looked for.
const FRAME: Duration = Duration::from_millis(80);
