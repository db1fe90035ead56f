//! What the user looks at, and what keys change about it.

use super::model::Model;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};

/// See the [module](self).
#[derive(Clone, Debug, Default)]
pub(super) struct View {
    /// Number of the chosen queue pair.
    pub(super) chosen: Option<u32>,
    /// Where all does not fit: the chosen queue pair is shown, not the list.
    pub(super) is_open: bool,
    /// All events are shown, not only those that tell of trouble.
    pub(super) all_events: bool,
    pub(super) helps: bool,
    /// Rungs of the ladder below those that are shown.
    pub(super) scrolled: usize,
    /// What was to be seen when the user said to hold it.
    pub(super) held: Option<Box<Model>>,
}

/// What a key asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Answer {
    Stay,
    Quit,
}

impl View {
    /// The model to show: the one of now, or the one that is held.
    pub(super) fn of<'a>(&'a self, now: &'a Model) -> &'a Model {
        self.held.as_deref().unwrap_or(now)
    }

    /// Place of the chosen queue pair in the list; the first one while none is chosen, or when it
    /// is gone.
    pub(super) fn place(&self, model: &Model) -> usize {
        let is_chosen = |qpn: u32| self.chosen == Some(qpn);
        model.qps().iter().position(|made| is_chosen(made.object.qpn)).unwrap_or(0)
    }

    /// Number of the queue pair that is shown.
    pub(super) fn qpn(&self, model: &Model) -> Option<u32> {
        let of_place = || model.qps().get(self.place(model)).map(|made| made.object.qpn);
        // One that is gone is shown while its events are known.
        let is_known = |qpn: &u32| self.is_open && model.trail(*qpn).is_some();
        self.chosen.filter(is_known).or_else(of_place)
    }

    /// A key was pressed.
    pub(super) fn key(&mut self, key: KeyEvent, now: &Model) -> Answer {
        if key.kind == KeyEventKind::Release {
            return Answer::Stay;
        }
        let is_control = key.modifiers.contains(KeyModifiers::CONTROL);
        match key.code {
            KeyCode::Char('c' | 'd') if is_control => return Answer::Quit,
            KeyCode::Char('q') => return Answer::Quit,
            _ if self.helps => self.helps = false,
            KeyCode::Char('?' | 'h') => self.helps = true,
            KeyCode::Char('e') => self.all_events = !self.all_events,
            KeyCode::Char(' ') => {
                self.held = match self.held {
                    Some(_) => None,
                    None => Some(Box::new(now.clone())),
                };
            }
            KeyCode::Down | KeyCode::Char('j') => self.move_by(1, now),
            KeyCode::Up | KeyCode::Char('k') => self.move_by(-1, now),
            KeyCode::Home => self.move_by(isize::MIN, now),
            KeyCode::End => self.move_by(isize::MAX, now),
            KeyCode::PageUp => self.scroll(now),
            KeyCode::PageDown => self.scrolled = self.scrolled.saturating_sub(PAGE),
            KeyCode::Enter | KeyCode::Right => {
                self.chosen = self.qpn(self.of(now));
                self.is_open = self.chosen.is_some();
            }
            KeyCode::Esc | KeyCode::Left | KeyCode::Backspace => self.is_open = false,
            _ => {}
        }
        Answer::Stay
    }

    /// Not further than there are rungs: each page must lead back with one key.
    fn scroll(&mut self, now: &Model) {
        let model = self.of(now);
        let trail = self.qpn(model).and_then(|qpn| model.trail(qpn));
        let most = trail.map_or(0, |trail| trail.rungs.len()).saturating_sub(PAGE);
        self.scrolled = self.scrolled.saturating_add(PAGE).min(most);
    }

    fn move_by(&mut self, by: isize, now: &Model) {
        let model = self.of(now);
        let last = model.qps().len().saturating_sub(1);
        let place = self.place(model).saturating_add_signed(by).min(last);
        self.chosen = model.qps().get(place).map(|made| made.object.qpn);
        self.scrolled = 0;
    }
}

/// Rungs that a key scrolls.
const PAGE: usize = 10;

#[cfg(test)]
mod tests {
    use super::super::script::{PEER, QPN, lists, model, record, request};
    use super::*;

    fn press(view: &mut View, model: &Model, code: KeyCode) -> Answer {
        view.key(KeyEvent::new(code, KeyModifiers::NONE), model)
    }

    #[test]
    fn keys_choose_open_and_close() {
        let (mut view, model) = (View::default(), model());
        assert_eq!(view.qpn(&model), Some(QPN.value()));
        press(&mut view, &model, KeyCode::Down);
        press(&mut view, &model, KeyCode::Down);
        assert_eq!(view.qpn(&model), Some(PEER.value()));
        press(&mut view, &model, KeyCode::Enter);
        assert!(view.is_open);
        press(&mut view, &model, KeyCode::Home);
        assert_eq!(view.qpn(&model), Some(QPN.value()));
        press(&mut view, &model, KeyCode::Esc);
        assert!(!view.is_open);
        assert_eq!(press(&mut view, &model, KeyCode::Char('q')), Answer::Quit);
        let control_c = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
        assert_eq!(view.key(control_c, &model), Answer::Quit);
    }

    #[test]
    fn keys_harm_nothing_where_there_is_no_queue_pair() {
        let (mut view, model) = (View::default(), Model::default());
        for code in [KeyCode::Down, KeyCode::Up, KeyCode::Enter, KeyCode::End, KeyCode::PageUp] {
            assert_eq!(press(&mut view, &model, code), Answer::Stay);
        }
        assert_eq!((view.qpn(&model), view.is_open), (None, false));
    }

    #[test]
    fn no_page_is_above_the_oldest_packet() {
        let (mut view, mut model) = (View::default(), model());
        for psn in 0..25 {
            model.note(0, record(0, &request(0, 2 * psn, false)));
        }
        let rungs = model.trail(QPN.value()).unwrap().rungs.len();
        (0..99).for_each(|_| {
            press(&mut view, &model, KeyCode::PageUp);
        });
        assert_eq!(view.scrolled, rungs - PAGE);
        press(&mut view, &model, KeyCode::PageDown);
        assert_eq!(view.scrolled, rungs - 2 * PAGE);
    }

    #[test]
    fn what_is_held_does_not_change() {
        let (mut view, mut now) = (View::default(), model());
        press(&mut view, &now, KeyCode::Char(' '));
        now.update(lists(50_000_000_000_000, 999_999_999));
        assert_ne!(view.of(&now).port_rates(), now.port_rates());
        press(&mut view, &now, KeyCode::Char(' '));
        assert_eq!(view.of(&now).port_rates(), now.port_rates());
    }

    #[test]
    fn one_that_ends_stays_in_view_while_it_is_open() {
        let (mut view, mut now) = (View::default(), model());
        press(&mut view, &now, KeyCode::Enter);
        let mut less = lists(50_000_000_000_000, 1);
        less.qps.remove(0);
        now.update(less);
        assert_eq!(view.qpn(&now), Some(QPN.value()));
        press(&mut view, &now, KeyCode::Esc);
        assert_eq!(view.qpn(&now), Some(PEER.value()));
    }
}
