//! The memory of the ends of a carrier: cells of one size, many to a region.
//!
//! Invariant: a cell belongs to one end until the key to it was revoked.

use weft_fabric::{Endpoint, Region, RegisterError};

use crate::layout::Layout;

/// Cells of one region. An endpoint may have 1,024 regions, and one carrier many more lanes.
const CELLS_OF_REGION: u64 = 16;

/// A cell: a range of a region.
#[derive(Clone, Debug)]
pub(crate) struct Cell<R> {
    pub region: R,
    pub start: u64,
}

/// The cells of a carrier.
#[derive(Debug)]
pub(crate) struct Cells<R> {
    regions: Vec<R>,
    free: Vec<Cell<R>>,
    layout: Layout,
}

impl<R: Region> Cells<R> {
    pub fn new(layout: Layout) -> Self {
        Self { regions: Vec::new(), free: Vec::new(), layout }
    }

    /// The regions of all cells.
    pub fn regions(&self) -> &[R] {
        &self.regions
    }

    /// Takes a cell whose words and slots are zero.
    pub fn take<E: Endpoint<Region = R>>(
        &mut self,
        endpoint: &mut E,
    ) -> Result<Cell<R>, RegisterError> {
        if self.free.is_empty() {
            let bytes = self.layout.bytes();
            let region = endpoint.register(bytes * CELLS_OF_REGION)?;
            self.regions.push(region.clone());
            let cells = (0..CELLS_OF_REGION).rev();
            self.free
                .extend(cells.map(|cell| Cell { region: region.clone(), start: cell * bytes }));
        }
        Ok(self.free.pop().expect("a region has cells"))
    }

    /// Gives a cell back to which no key is in force any more.
    pub fn give_back(&mut self, cell: Cell<R>) {
        // Bytes of the sink are read only behind a message, so they may stay.
        const PIECE: [u8; 128] = [0; 128];
        for offset in (0..self.layout.sink_start()).step_by(PIECE.len()) {
            let cleared = cell.region.write(cell.start + offset, &PIECE);
            assert_eq!(cleared, Ok(()), "a cell lies in its region");
        }
        self.free.push(cell);
    }
}
