//! tmp
use std::time::Instant;
use weft_network::{
    Network, Settings,
    traffic::{OpenLoop, Pattern, Traffic},
};
use weft_routing::{Choice, Heading, Route};
use weft_topology::{Graph, GraphBuilder, Kind, Layout, LinkClass, Port, Vertex, layout::Grid};
struct Dor(Grid);
impl Route for Dor {
    fn vcs(&self) -> u8 {
        2
    }
    fn next(&self, at: Vertex, arrived: Option<(Port, u8)>, h: &Heading, c: &mut Vec<Choice>) {
        c.clear();
        for (d, size) in self.0.sizes().iter().enumerate() {
            let (x, to) = (self.0.coordinate(at, d), self.0.coordinate(h.to, d));
            if x == to {
                continue;
            }
            let from = self.0.coordinate(h.from, d);
            let dist = (to + size - from) % size;
            let up = if dist * 2 == *size { from % 2 == 0 } else { dist * 2 < *size };
            let port = self.0.port(d, up);
            // crossed the dateline between size-1 and 0 already?
            let crossed = if up { x < from } else { x > from };
            let _ = arrived;
            c.push(Choice { port, vc: u8::from(crossed) });
            return;
        }
    }
}
fn torus(sizes: &[u32]) -> Graph {
    let grid = Grid::new(sizes.to_vec(), true);
    let mut b = GraphBuilder::new();
    b.vertices(Kind::Host, grid.vertices(), grid.ports()).unwrap();
    for v in 0..grid.vertices() {
        for (d, s) in grid.sizes().iter().enumerate() {
            let p = grid.coordinate(v, d);
            let n = if p + 1 == *s { v - p * grid.stride(d) } else { v + grid.stride(d) };
            b.link((v, grid.port(d, true)), (n, grid.port(d, false)), LinkClass::default())
                .unwrap();
        }
    }
    b.build(Layout::Grid(grid)).unwrap()
}
fn main() {
    let args: Vec<String> = std::env::args().collect();
    let sizes: Vec<u32> = args[1].split('x').map(|s| s.parse().unwrap()).collect();
    let count: usize = args[2].parse().unwrap();
    let load: u64 = args[3].parse().unwrap(); // MB/s per host
    let begin = Instant::now();
    let graph = torus(&sizes);
    let traffic = Traffic::new(&graph, Pattern::Uniform).unwrap();
    let mut net =
        Network::new(graph, Box::new(Dor(Grid::new(sizes.clone(), true))), Settings::default())
            .unwrap();
    println!("built {:?}", begin.elapsed());
    let (mut done, mut lat, mut hops) = (0u64, 0u64, 0u64);
    let mut take = |o: weft_network::Outcome| {
        if let weft_network::Outcome::Delivered { sent_at, at, hops: h, .. } = o {
            done += 1;
            lat += at - sent_at;
            hops += u64::from(h);
        }
    };
    for (time, m) in OpenLoop::new(traffic, 496, 0, load * 1_000_000, 1).take(count) {
        while let Some(o) = net.run(time) {
            take(o);
        }
        net.send(m).unwrap();
    }
    println!("sent {:?} at {} ns", begin.elapsed(), net.now() / 1000);
    while let Some(o) = net.run_out() {
        take(o);
    }
    println!(
        "{done} delivered, mean {} ns, {} hops, {:?}, {} ns",
        lat / done / 1000,
        hops / done,
        begin.elapsed(),
        net.now() / 1000
    );
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    println!("{}", status.lines().find(|l| l.starts_with("VmHWM")).unwrap());
}
