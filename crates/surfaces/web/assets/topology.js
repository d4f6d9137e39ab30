"use strict";
/* Places of nodes, and the graph that ECharts draws: a torus that its names or its links give away
   is laid out as a grid, any other graph as a circle, one that is too large as groups of nodes. */
const Topology = (() => {
  const NODES_MAX = 4096;
  /* Bytes a second: what a link with less carries is no load. */
  const BUSY_LEAST = 1e6;
  /* Nodes up to which each has an element, with a name and a tooltip. */
  const ELEMENTS_MAX = 512;
  /* Colours of links beyond that. */
  const COLOURS = 8;

  /* The nodes and links that a status tells: those of a lab, else the hosts of the fabric, else the
     own node with its programs. */
  function graphOf(status) {
    if (status.wired && status.wired.nodes.length) {
      const nodes = status.wired.nodes.map((name, number) => ({ name, number, up: true }));
      const links = status.wired.links.map(([from, , to, , cut], at) => ({ from, to, cut, at: [at] }));
      return { nodes, links, kind: "lab" };
    }
    if (status.fabric) {
      const nodes = status.fabric.nodes.map((node) => ({
        name: node.name || node.address, number: node.number, state: node.state,
        up: node.state === "up" || node.state === "self",
      }));
      const own = status.fabric.nodes.findIndex((node) => node.state === "self");
      const links = nodes.map((node, place) => ({ from: own, to: place, cut: !node.up }));
      return { nodes, links: links.filter(({ from, to }) => from >= 0 && from !== to), kind: "hosts" };
    }
    return programs(status);
  }

  /* Programs of one host, and who talks to whom. */
  function programs(status) {
    const places = new Map();
    const nodes = [];
    const place = (pid) => {
      if (!places.has(pid)) {
        const known = status.processes.find((process) => process.pid === pid);
        places.set(pid, nodes.length);
        nodes.push({ name: `${known ? known.name : "process"} ${pid}`, number: pid, up: true });
      }
      return places.get(pid);
    };
    const links = new Map();
    for (const one of status.connections) {
      const [from, to] = [place(one.client_pid), place(one.server_pid)];
      const link = links.get(`${from} ${to}`) || { from, to, cut: false, count: 0 };
      link.count += 1;
      links.set(`${from} ${to}`, link);
    }
    return { nodes, links: [...links.values()], kind: "programs" };
  }

  /* Groups of neighbouring numbers, for a graph of more nodes than a screen has places. */
  function grouped(graph) {
    if (graph.nodes.length <= NODES_MAX) return graph;
    const size = Math.ceil(graph.nodes.length / 1024);
    const of = (place) => Math.floor(place / size);
    const nodes = [];
    graph.nodes.forEach((node, place) => {
      if (place % size === 0) nodes.push({ ...node, name: `${node.name} and ${size - 1} more` });
    });
    const links = new Map();
    for (const { from, to, cut, at } of graph.links) {
      const [one, other] = [of(from), of(to)];
      if (one === other) continue;
      const key = `${Math.min(one, other)} ${Math.max(one, other)}`;
      const link = links.get(key) || { from: one, to: other, cut: false, at: [] };
      link.cut = link.cut || cut;
      link.at.push(...(at || []));
      links.set(key, link);
    }
    return { nodes, links: [...links.values()], kind: graph.kind };
  }

  /* The sides of a torus or mesh, if the links are those of one: each joins neighbours in one
     dimension of the row-major order of the nodes. */
  let known = { count: -1, links: -1 };
  function sides(graph) {
    const [count, links] = [graph.nodes.length, graph.links.length];
    if (known.count !== count || known.links !== links) {
      known = { count, links, shape: shapeOf(graph) };
    }
    return graph.kind === "lab" ? known.shape : undefined;
  }

  function shapeOf(graph) {
    const count = graph.nodes.length;
    const fits = (shape) => graph.links.every(({ from, to }) => {
      let steps = 0;
      let [a, b] = [from, to];
      for (const side of [...shape].reverse()) {
        const gap = Math.abs(a % side - b % side);
        if (gap === 1 || (gap === side - 1 && gap > 0)) steps += 1;
        else if (gap !== 0) return false;
        a = Math.floor(a / side);
        b = Math.floor(b / side);
      }
      return steps === 1;
    });
    const shapes = [];
    for (let x = 1; x <= count; x += 1) {
      if (count % x) continue;
      for (let y = 2; y <= count / x; y += 1) {
        if ((count / x) % y === 0 && count / x / y > 1) shapes.push([x, y, count / x / y]);
      }
    }
    shapes.sort((a, b) => Math.max(...a) - Math.min(...a) - Math.max(...b) + Math.min(...b));
    return graph.kind === "lab" && graph.links.length >= count ? shapes.find(fits) : undefined;
  }

  /* Coordinates: a torus in three dimensions is drawn in slanted layers. */
  function placed(graph) {
    const shape = sides(graph);
    return graph.nodes.map((node, place) => {
      if (shape) {
        const [depth, height, width] = shape;
        const x = place % width;
        const y = Math.floor(place / width) % height;
        const z = Math.floor(place / width / height);
        const slant = depth > 1 ? 0.42 : 0;
        return { x: x * 100 + z * 100 * slant, y: y * 100 - z * 100 * slant };
      }
      const angle = (place / graph.nodes.length) * 2 * Math.PI;
      return { x: Math.cos(angle) * 300, y: Math.sin(angle) * 200 };
    });
  }

  /* From the colour of an idle link to that of the one with most bytes. */
  function colour(load, most) {
    const share = Math.min(1, load / most);
    return share < 0.001 ? "#8a96a0" : `hsl(${200 - 160 * share} 85% 45%)`;
  }

  /* A graph of many links as a few lines with gaps, one for each colour: an element for each link
     would take the page half a second of each. Nodes are where links meet. */
  function woven(graph, places, loads, most, bad) {
    const classes = Array.from({ length: COLOURS }, () => []);
    const cut = [];
    const down = [];
    graph.links.forEach((link, at) => {
      const share = Math.min(1, loads[at] / most);
      const points = link.cut ? cut : classes[Math.floor(share * (COLOURS - 1))];
      const [one, other] = [places[link.from], places[link.to]];
      points.push([one.x, -one.y], [other.x, -other.y], [null, null]);
    });
    graph.nodes.forEach((node, at) => { if (!node.up) down.push([places[at].x, -places[at].y]); });
    const line = (name, data, color, width) => ({
      name, type: "line", data, showSymbol: false, silent: true, animation: false,
      lineStyle: { color, width }, z: width > 1 ? 3 : 2,
    });
    const axis = { type: "value", show: false, scale: true };
    return {
      animation: false,
      grid: { left: 12, right: 12, top: 12, bottom: 12 },
      xAxis: axis, yAxis: axis,
      dataZoom: [{ type: "inside", filterMode: "none", xAxisIndex: 0 },
        { type: "inside", filterMode: "none", yAxisIndex: 0 }],
      series: [
        ...classes.map((data, at) =>
          line(`load ${at}`, data, colour((at / (COLOURS - 1)) * most, most), 1)),
        line("cut", cut, bad, 3),
        { ...line("down", down, "transparent", 0), showSymbol: true, symbolSize: 6,
          itemStyle: { color: bad } },
      ],
    };
  }

  /* The option of ECharts. `load` gives the bytes a second of a link. */
  function option(status, load, ink, bad) {
    const graph = grouped(graphOf(status));
    const places = placed(graph);
    const loads = graph.links.map((link) => load(graph, link));
    const most = loads.reduce((one, other) => Math.max(one, other), BUSY_LEAST);
    if (graph.nodes.length > ELEMENTS_MAX) {
      return { graph, option: woven(graph, places, loads, most, bad) };
    }
    const few = graph.nodes.length <= 128;
    const size = Math.max(4, Math.min(22, 420 / Math.sqrt(graph.nodes.length + 1) / 6));
    return {
      graph,
      option: {
        animation: false,
        tooltip: {},
        series: [{
          type: "graph", layout: "none", roam: true, symbolSize: size,
          zoom: 0.75,
          label: { show: few, position: "bottom", color: ink, fontSize: 11 },
          lineStyle: { width: few ? 2.5 : 1 },
          data: graph.nodes.map((node, place) => ({
            id: String(place), name: node.name, ...places[place],
            itemStyle: { color: node.up ? "#2a7f4f" : bad },
          })),
          links: graph.links.map((link, place) => ({
            source: String(link.from), target: String(link.to),
            value: link.cut ? "cut" : `${Math.round(loads[place])} bytes a second`,
            lineStyle: {
              color: link.cut ? bad : colour(loads[place], most),
              type: link.cut ? "dashed" : "solid", width: link.cut ? 4 : undefined,
              curveness: 0, opacity: 1,
            },
          })),
        }],
      },
    };
  }

  return { graphOf, option, sides };
})();
