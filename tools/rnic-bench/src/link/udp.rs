//! Kernel UDP sockets with segmentation and receive offload.

use std::net::SocketAddr;

use anyhow::{Context, Result};
use roce_wire::ROCE_PORT;
use xdp_io::udp::{RxTrain, TxTrain, UdpConfig, UdpPort};

use super::{Link, Piece, flow};
use crate::pair::Side;

const BATCH: usize = 64;

pub(super) struct Udp {
    port: UdpPort,
    train: TxTrain,
    received: [RxTrain; BATCH],
}

impl Udp {
    pub(super) fn open(side: &Side<'_>) -> Result<Self> {
        let flow = flow(side.index);
        let config = UdpConfig::new(vec![flow.src], ROCE_PORT);
        let port = UdpPort::bind(&config).context("udp")?;
        let train = TxTrain {
            src: flow.src,
            dst: SocketAddr::new(flow.dst, ROCE_PORT),
            tos: flow.tos,
            hop_limit: flow.hop_limit,
            segment_len: 0,
        };
        Ok(Self { port, train, received: [RxTrain::default(); BATCH] })
    }
}

impl Link for Udp {
    fn has_trains(&self) -> bool {
        true
    }

    fn reserve(&mut self, count: usize, len: usize) -> Option<usize> {
        let train = TxTrain { segment_len: len as u16, ..self.train };
        self.port.reserve(&train, count * len).ok().map(|slot| slot.offset)
    }

    fn tx(&mut self) -> &mut [u8] {
        self.port.tx_arena_mut()
    }

    fn submit(&mut self) {
        self.port.submit();
    }

    fn receive(&mut self, pieces: &mut Vec<Piece>) {
        let count = self.port.receive(&mut self.received);
        pieces.extend(self.received[..count].iter().map(|train| Piece {
            offset: train.offset,
            len: train.len,
            segment: train.segment_len,
        }));
    }

    fn rx(&self) -> &[u8] {
        self.port.rx_arena()
    }

    fn release(&mut self) {
        self.port.release_rx();
    }
}
