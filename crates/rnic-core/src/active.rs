//! The QPs that egress visits next: those with something to send or to flush.
//!
//! Clients take turns, and the QPs of a client take turns within that: a program with 500 busy QPs
//! sends no more than one with a single QP. Nothing here allocates once a QP exists.

use std::collections::VecDeque;

/// Slots of active QPs, in the order of their visits.
#[derive(Debug, Default)]
pub(crate) struct ActiveQps {
    /// By client slot.
    clients: Vec<Line>,
    /// Slots of the clients that have active QPs, each once, in the order of their turns.
    turns: VecDeque<u32>,
    /// How many QPs are active.
    len: usize,
    /// How many were looked at out of turn.
    glances: usize,
}

/// The QPs of one client.
#[derive(Debug, Default)]
struct Line {
    active: VecDeque<u32>,
    /// How many there are, active or not.
    members: usize,
}

impl ActiveQps {
    /// How many QPs are active.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// A client gets a QP: makes room for it, so that the data path never does.
    pub(crate) fn add(&mut self, client: u32) {
        let client = client as usize;
        if self.clients.len() <= client {
            self.clients.resize_with(client + 1, Line::default);
        }
        self.turns.reserve(self.clients.len() - self.turns.len());
        let line = &mut self.clients[client];
        line.members += 1;
        line.active.reserve(line.members - line.active.len());
    }

    /// A QP of a client is gone.
    pub(crate) fn remove(&mut self, client: u32, qp: u32) {
        let Some(line) = self.clients.get_mut(client as usize) else { return };
        let before = line.active.len();
        line.active.retain(|active| *active != qp);
        line.members -= 1;
        self.len -= before - line.active.len();
        if line.active.is_empty() {
            self.turns.retain(|turn| *turn != client);
        }
    }

    /// A QP is to be visited after all others of its client.
    #[inline]
    pub(crate) fn push_back(&mut self, client: u32, qp: u32) {
        let Some(line) = self.clients.get_mut(client as usize) else { return };
        if line.active.is_empty() {
            self.turns.push_back(client);
        }
        line.active.push_back(qp);
        self.len += 1;
    }

    /// A QP is to be visited before all others.
    pub(crate) fn push_front(&mut self, client: u32, qp: u32) {
        let Some(line) = self.clients.get_mut(client as usize) else { return };
        // If it is among them it has just had a turn, and is one of the last.
        if let Some(at) = self.turns.iter().rposition(|turn| *turn == client) {
            self.turns.remove(at);
        }
        self.turns.push_front(client);
        line.active.push_front(qp);
        self.len += 1;
    }

    /// Takes the QP whose turn it is. The next client is the one after its client.
    #[inline]
    pub(crate) fn pop_front(&mut self) -> Option<u32> {
        let client = *self.turns.front()?;
        let line = self.clients.get_mut(client as usize)?;
        let qp = line.active.pop_front();
        let goes_on = !line.active.is_empty();
        if !goes_on {
            self.turns.pop_front();
        } else if self.turns.len() > 1 {
            self.turns.rotate_left(1);
        }
        self.len -= 1;
        qp
    }

    /// Some active QP, whose turn it need not be: another one each time, until it was all of them.
    pub(crate) fn glance(&mut self) -> Option<u32> {
        self.glances = self.glances.wrapping_add(1);
        let client = *self.turns.get(self.glances % self.turns.len().max(1))?;
        let line = self.clients.get(client as usize)?;
        let round = self.glances / self.turns.len();
        line.active.get(round % line.active.len()).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `(client, QPs)`, all of them active in this order.
    fn with(clients: &[(u32, &[u32])]) -> ActiveQps {
        let mut active = ActiveQps::default();
        for (client, qps) in clients {
            for qp in *qps {
                active.add(*client);
                active.push_back(*client, *qp);
            }
        }
        active
    }

    fn all(mut active: ActiveQps) -> Vec<u32> {
        let order: Vec<u32> = std::iter::from_fn(|| active.pop_front()).collect();
        assert!(active.is_empty() && active.turns.is_empty(), "something is left");
        order
    }

    #[test]
    fn clients_take_turns_and_so_do_the_qps_of_each() {
        let active = with(&[(4, &[1, 2, 3, 4]), (0, &[5]), (2, &[6, 7])]);
        assert_eq!(active.len(), 7);
        assert_eq!(all(active), [1, 5, 6, 2, 7, 3, 4]);
    }

    #[test]
    fn a_qp_that_is_active_again_waits_for_those_of_its_client_only() {
        let mut active = with(&[(0, &[1, 2, 3]), (1, &[9])]);
        let mut order = Vec::new();
        for _ in 0..8 {
            let qp = active.pop_front().expect("all are active");
            active.push_back(u32::from(qp == 9), qp);
            order.push(qp);
        }
        assert_eq!(order, [1, 9, 2, 9, 3, 9, 1, 9]);
    }

    #[test]
    fn a_visit_that_was_cut_short_goes_on_first() {
        let mut active = with(&[(0, &[1, 2]), (1, &[8, 9])]);
        let qp = active.pop_front().expect("all are active");
        active.push_front(0, qp);
        assert_eq!(all(active), [1, 8, 2, 9]);
        let mut lone = with(&[(0, &[1]), (1, &[9])]);
        let qp = lone.pop_front().expect("all are active");
        lone.push_front(0, qp);
        assert_eq!(all(lone), [1, 9]);
    }

    #[test]
    fn a_qp_that_is_gone_has_no_turn() {
        let mut active = with(&[(0, &[1, 2]), (1, &[9])]);
        active.remove(0, 1);
        active.remove(1, 9);
        active.remove(7, 1);
        assert_eq!(active.len(), 1);
        assert_eq!(all(active), [2]);
    }

    #[test]
    fn glances_reach_every_qp() {
        let mut active = with(&[(0, &[1, 2, 3]), (1, &[8, 9])]);
        let mut seen: Vec<u32> = (0..12).filter_map(|_| active.glance()).collect();
        seen.sort_unstable();
        seen.dedup();
        assert_eq!(seen, [1, 2, 3, 8, 9]);
        assert_eq!(ActiveQps::default().glance(), None);
    }

    #[test]
    fn what_exists_needs_no_more_memory() {
        let mut active = with(&[(0, &[1, 2, 3]), (1, &[8, 9])]);
        let room = |active: &ActiveQps| -> Vec<usize> {
            active.clients.iter().map(|line| line.active.capacity()).collect()
        };
        let before = (room(&active), active.turns.capacity());
        for _ in 0..100 {
            let qp = active.pop_front().expect("all are active");
            active.push_back(u32::from(qp > 7), qp);
        }
        assert_eq!((room(&active), active.turns.capacity()), before);
    }
}
