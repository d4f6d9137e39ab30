"use strict";
/* The dashboard: reads one status a second from the stream, keeps the last ten minutes of them, and
   shows the last one, or the one that the slider names. Nothing is loaded from elsewhere. */
(() => {
  const FRAMES_MAX = 600;
  const ROWS_MAX = 100;
  const SECONDS_LEAST = 60;
  const frames = [];
  let shown = null;
  let chosen = null;
  const by = (id) => document.getElementById(id);
  const token = new URLSearchParams(location.hash.slice(1)).get("token");
  const charts = {};

  const bytes = (value) => {
    const units = ["B", "kB", "MB", "GB", "TB", "PB"];
    let place = 0;
    while (value >= 10000 && place < units.length - 1) { value /= 1000; place += 1; }
    return `${Math.round(value)} ${units[place]}`;
  };
  const sum = (values) => values.reduce((all, value) => all + value, 0);
  const style = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

  function theme() {
    const wanted = by("theme").value;
    const dark = wanted === "dark"
      || (wanted === "auto" && matchMedia("(prefers-color-scheme: dark)").matches);
    document.documentElement.dataset.theme = dark ? "dark" : "light";
    if (shown !== null) show(shown);
  }

  function say(text, bad) {
    by("state").textContent = text;
    by("state").className = bad ? "bad" : "";
  }

  /* What plots and rates need of a status. */
  function totals(status) {
    const streams = status.totals.map((total) => total.streams);
    const registers = (name) => sum(status.totals.map((total) => total.registers[name] || 0));
    return {
      fabric: sum(streams.map((one) => one.fabric_sent)),
      tcp: sum(streams.map((one) => one.tcp_sent)),
      endpoints: registers("put_bytes") + registers("message_bytes_sent") + registers("get_bytes"),
      ethernet: sum(status.devices.map((device) => device.sent_bytes)),
      times: sum(status.services.map((service) => service.times_sum_ns)),
      links: sum(status.link_bytes || []),
      requests: sum(status.services.map((service) => sum(service.times))),
    };
  }

  function key(one) { return `${one.client} ${one.server} ${one.client_pid}`; }

  function receive(status) {
    if (!status.node) { say("the daemon did not answer in time", true); return; }
    const connections = new Map(status.connections.map((one) => [key(one), one]));
    frames.push({ status, sums: totals(status), connections });
    if (frames.length > FRAMES_MAX) {
      frames.shift();
      if (shown !== null) shown = Math.max(0, shown - 1);
    }
    const slider = by("time");
    const live = slider.value === slider.max;
    slider.max = frames.length - 1;
    if (live) { slider.value = slider.max; show(frames.length - 1); }
    say(`release ${status.version}, up ${status.uptime_s} s`, false);
  }

  /* The seconds between two frames. Those of a simulation are stretched. */
  function between(before, now) {
    return (now.status.at_ms - before.status.at_ms) / 1000 / (now.status.stretch || 1);
  }

  /* A value for each second between two frames. */
  function rates(of) {
    return frames.slice(1).map((frame, place) => {
      const before = frames[place];
      const seconds = between(before, frame);
      const grown = of(frame) - of(before);
      return [frame.status.at_ms, seconds > 0 && grown >= 0 ? grown / seconds : 0];
    });
  }

  function rateAt(place, of) {
    if (place < 1) return 0;
    const [before, now] = [frames[place - 1], frames[place]];
    const seconds = between(before, now);
    return seconds > 0 ? Math.max(0, of(now) - of(before)) / seconds : 0;
  }

  function chart(id, option) {
    if (!charts[id]) charts[id] = echarts.init(by(id), null, { renderer: "canvas" });
    const replaceMerge = ["series", "xAxis", "yAxis", "grid", "dataZoom"];
    charts[id].setOption(option, { replaceMerge });
  }

  function lines(id, series, format) {
    const ink = style("--soft");
    const last = frames[frames.length - 1].status.at_ms;
    chart(id, {
      animation: false,
      aria: { enabled: true },
      textStyle: { color: ink },
      color: [style("--accent"), "#d98324", "#7a5ea8", style("--good")],
      grid: { left: 70, right: 14, top: 30, bottom: 28 },
      legend: { textStyle: { color: ink }, top: 0 },
      tooltip: { trigger: "axis", valueFormatter: format },
      xAxis: frames[0].status.stretch ? {
        type: "value", max: last, axisLabel: { color: ink, hideOverlap: true,
          formatter: (value) => `${value / 1000} us` },
      } : {
        type: "time", axisLabel: { color: ink, hideOverlap: true }, max: last,
        min: Math.min(frames[0].status.at_ms, last - SECONDS_LEAST * 1000),
      },
      yAxis: {
        type: "value", min: 0, minInterval: 1, axisLabel: { color: ink, formatter: format },
        splitLine: { lineStyle: { color: style("--line") } },
      },
      series: series.map(([name, data]) => ({ name, type: "line", showSymbol: false, data })),
    });
  }

  function table(id, rows, choose) {
    const body = by(id);
    body.replaceChildren(...rows.map((cells) => {
      const row = document.createElement("tr");
      for (const cell of cells.cells || cells) {
        const td = document.createElement("td");
        td.textContent = cell;
        row.append(td);
      }
      if (choose) {
        row.tabIndex = 0;
        row.setAttribute("aria-selected", String(cells.key === chosen));
        const take = () => { chosen = cells.key; show(shown); };
        row.addEventListener("click", take);
        row.addEventListener("keydown", (event) => { if (event.key === "Enter") take(); });
      }
      return row;
    }));
  }

  function showSums(status, place) {
    const cells = [
      ["programs", status.processes.length],
      ["connections on the fabric", status.connections.length],
      ["ends that stayed on TCP", sum(status.totals.map((total) => total.streams.tcp))],
      ["endpoints", status.endpoints.length],
      ["over the fabric", `${bytes(rateAt(place, (frame) => frame.sums.fabric))}/s`],
      ["by endpoints", `${bytes(rateAt(place, (frame) => frame.sums.endpoints))}/s`],
      ["by Ethernet", `${bytes(rateAt(place, (frame) => frame.sums.ethernet))}/s`],
      ["memory of the daemon", bytes(status.daemon.resident_bytes)],
    ];
    by("sums").replaceChildren(...cells.flatMap(([name, value]) => {
      const [dt, dd] = [document.createElement("dt"), document.createElement("dd")];
      dt.textContent = name;
      dd.textContent = value;
      const cell = document.createElement("div");
      cell.append(dt, dd);
      return [cell];
    }));
  }

  /* The load of a link: of a lab, what the devices at its ends sent, in equal parts for their
     links, since the daemon counts packets by device; of programs, what their connections carry. */
  function loads(place) {
    if (frames[place].status.link_bytes) return loadsSimulated(place);
    const of = (frame) => new Map(frame.status.devices.map((one) => [one.node, one.sent_bytes]));
    const devices = new Map([place - 1, place].filter((at) => at >= 0)
      .map((at) => [frames[at], of(frames[at])]));
    const device = (frame, node) => devices.get(frame).get(node) || 0;
    const degrees = new Map();
    const degree = (graph, end) => {
      if (degrees.size === 0) {
        for (const { from, to, cut } of graph.links) {
          for (const one of cut ? [] : [from, to]) degrees.set(one, (degrees.get(one) || 0) + 1);
        }
      }
      return degrees.get(end) || 1;
    };
    return (graph, link) => {
      if (graph.kind === "programs") {
        const [client, server] = [graph.nodes[link.from].number, graph.nodes[link.to].number];
        return rateAt(place, (frame) => sum(frame.status.connections
          .filter((one) => one.client_pid === client && one.server_pid === server)
          .map((one) => one.bytes_from_client + one.bytes_from_server)));
      }
      return sum([link.from, link.to].map((end) => {
        const { number } = graph.nodes[end];
        return rateAt(place, (frame) => device(frame, number)) / degree(graph, end);
      }));
    };
  }

  /* The bytes of simulated links, by their places. */
  function loadsSimulated(place) {
    if (place < 1) return () => 0;
    const [before, now] = [frames[place - 1], frames[place]];
    const seconds = between(before, now);
    const grown = (at) => now.status.link_bytes[at] - before.status.link_bytes[at];
    return (graph, link) => (seconds > 0 ? Math.max(0, sum(link.at.map(grown))) / seconds : 0);
  }

  function showTopology(status, place) {
    const drawn = Topology.option(status, loads(place), style("--ink"), style("--bad"));
    chart("topology", drawn.option);
    const cut = drawn.graph.links.filter((link) => link.cut).length;
    const names = { lab: status.stretch ? "nodes" : "nodes of the lab", hosts: "hosts", programs: "programs that talk" };
    const text = `${drawn.graph.nodes.length} ${names[drawn.graph.kind]}, `
      + `${drawn.graph.links.length} links, ${cut} of them cut`;
    by("links").textContent = text;
    by("topology").setAttribute("aria-label", text);
  }

  function showConnections(status, place) {
    const wanted = by("filter").value.toLowerCase();
    const before = place > 0 ? frames[place - 1] : null;
    const seconds = before ? between(before, frames[place]) : 0;
    const carried = (one) => one.bytes_from_client + one.bytes_from_server;
    const name = (pid) => {
      const known = status.processes.find((process) => process.pid === pid);
      return known ? `${known.name} ${pid}` : String(pid);
    };
    const rows = status.connections.map((one) => {
      const former = before && before.connections.get(key(one));
      const rate = former && seconds > 0 ? Math.max(0, carried(one) - carried(former)) / seconds : 0;
      return {
        key: key(one), rate, carried: carried(one),
        cells: [`${one.client} (${name(one.client_pid)})`, `${one.server} (${name(one.server_pid)})`,
          bytes(one.bytes_from_client), bytes(one.bytes_from_server), `${bytes(rate)}/s`],
      };
    }).filter((row) => row.cells.join(" ").toLowerCase().includes(wanted));
    rows.sort((a, b) => b.rate - a.rate || b.carried - a.carried);
    table("connections", rows.slice(0, ROWS_MAX), true);
    by("more").textContent = rows.length > ROWS_MAX ? `${rows.length - ROWS_MAX} more` : "";
    const plot = by("connection");
    plot.hidden = !chosen;
    if (chosen) {
      const of = (field) => (frame) => {
        const one = frame.connections.get(chosen);
        return one ? one[field] : 0;
      };
      lines("connection", [["to the server", rates(of("bytes_from_client"))],
        ["to the client", rates(of("bytes_from_server"))]], (value) => `${bytes(value)}/s`);
      charts.connection.resize();
    }
    showTurns(status);
  }

  /* How long the program of the chosen connection waits for what it asked: of all its connections,
   * since lanes do not time theirs. */
  function showTurns(status) {
    const pid = chosen && Number(chosen.split(" ").pop());
    const client = status.processes.find((process) => process.pid === pid);
    by("turns").hidden = !client;
    if (!client) return;
    const of = (frame) => {
      const all = frame.status.totals.filter((total) => total.name === client.name);
      return [sum(all.map((one) => one.turns.sum_ns)), sum(all.map((one) => sum(one.turns.counts)))];
    };
    const means = frames.slice(1).map((now, at) => {
      const [[past, former], [time, count]] = [of(frames[at]), of(now)];
      return [now.status.at_ms, count > former ? (time - past) / (count - former) / 1000 : null];
    });
    lines("turns", [[`a turn of ${client.name}, from a write to the next read`, means]],
      (value) => `${Number(value).toPrecision(3)} us`);
    charts.turns.resize();
  }

  function showJobs(status, place) {
    const jobs = [...status.processes, ...status.ended].filter((one) => one.work.job);
    by("s-jobs").hidden = jobs.length === 0;
    const used = (frame, pid) => {
      const one = frame.status.processes.find((known) => known.pid === pid);
      return one && one.work.job ? one.work.job.processor_ms : 0;
    };
    table("jobs", jobs.slice(0, ROWS_MAX).map((one) => {
      const { job } = one.work;
      const load = one.ended_ms ? 0 : rateAt(place, (frame) => used(frame, one.pid)) / 1000;
      return [one.name.replace(/^job /, ""), one.ended_ms ? "over" : "runs", job.processes,
        job.started - job.ended, job.ended, job.failed, load.toFixed(1)];
    }));
  }

  function showRest(status, place) {
    const last = [...status.processes, ...status.ended]
      .flatMap((process) => process.on_tcp.map((one) => ({ process, one })));
    last.sort((a, b) => b.one.at_ms - a.one.at_ms);
    table("tcp", last.slice(0, 20).map(({ process, one }) => {
      const [own, other] = one.addresses || ["", ""];
      return [`${process.name} ${process.pid}`, own, other, one.why];
    }));
    const totals = [...status.totals].sort((a, b) => b.programs - a.programs
      || b.streams.fabric_sent - a.streams.fabric_sent);
    table("programs", totals.slice(0, ROWS_MAX).map((total) => [
      total.name, total.programs, total.endpoints, total.streams.fabric, total.streams.tcp,
      bytes(total.streams.fabric_sent),
      `${total.registers.puts || 0}, ${total.registers.messages_sent || 0}`,
    ]));
    showJobs(status, place);
    by("s-devices").hidden = status.devices.length === 0;
    table("devices", status.devices.slice(0, ROWS_MAX).map((device) => [
      device.node, device.interface, device.peers.length, bytes(device.sent_bytes),
      bytes(device.received_bytes),
      device.unreachable + device.refused + device.unwanted + device.lost,
    ]));
  }

  function show(place) {
    const frame = frames[place];
    if (!frame) return;
    shown = place;
    const { status } = frame;
    by("node").textContent = status.node;
    by("at").textContent = status.stretch ? `${status.at_ms / 1000} us`
      : place === frames.length - 1 ? "" : new Date(status.at_ms).toLocaleTimeString();
    showSums(status, place);
    showTopology(status, place);
    const simulated = [["links", rates((one) => one.sums.links)]];
    lines("rates", status.stretch ? simulated : [["fabric", rates((one) => one.sums.fabric)],
      ["TCP", rates((one) => one.sums.tcp)], ["endpoints", rates((one) => one.sums.endpoints)],
      ["Ethernet", rates((one) => one.sums.ethernet)]], (value) => `${bytes(value)}/s`);
    const delays = frames.slice(1).map((now, at) => {
      const requests = now.sums.requests - frames[at].sums.requests;
      const times = now.sums.times - frames[at].sums.times;
      return [now.status.at_ms, requests > 0 ? times / requests / 1000 : 0];
    });
    lines("delays", [["mean", delays]], (value) => `${Math.round(value)} us`);
    showConnections(status, place);
    showRest(status, place);
  }

  /* A recording has all its frames at once. */
  function play(recording) {
    for (const status of recording) {
      const connections = new Map(status.connections.map((one) => [key(one), one]));
      frames.push({ status, sums: totals(status), connections });
    }
    const slider = by("time");
    slider.max = frames.length - 1;
    slider.value = slider.max;
    by("live").textContent = "end";
    by("play").hidden = false;
    document.documentElement.dataset.kind = frames[0].status.stretch ? "simulated" : "node";
    show(frames.length - 1);
    say(`a recording of ${frames.length} moments`, false);
  }

  /* Shows one moment after the other, until the end or another click. */
  let playing = null;
  function playOn() {
    const slider = by("time");
    clearInterval(playing);
    if (by("play").textContent === "stop") { by("play").textContent = "play"; return; }
    if (slider.value === slider.max) slider.value = 0;
    by("play").textContent = "stop";
    playing = setInterval(() => {
      slider.value = Number(slider.value) + 1;
      show(Number(slider.value));
      if (slider.value === slider.max) { clearInterval(playing); by("play").textContent = "play"; }
    }, 100);
  }

  /* True if there is nothing more to come. */
  async function read() {
    const headers = token ? { Authorization: `Bearer ${token}` } : {};
    const first = await fetch("snapshot", { headers, cache: "no-store" });
    if (!first.ok) throw new Error((await first.text()).trim());
    const { recording } = await first.json();
    if (recording) { play(recording); return true; }
    const response = await fetch("stream", { headers, cache: "no-store" });
    if (!response.ok) throw new Error((await response.text()).trim());
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "";
    for (;;) {
      const { value, done } = await reader.read();
      if (done) throw new Error("the daemon went away");
      const parts = (rest + value).split("\n");
      rest = parts.pop();
      for (const part of parts) receive(JSON.parse(part));
    }
  }

  async function run() {
    for (;;) {
      try { if (await read()) return; } catch (error) {
        say(`${error.message}; asking again`, true);
      }
      await new Promise((resolve) => { setTimeout(resolve, 2000); });
    }
  }

  by("theme").addEventListener("change", theme);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", theme);
  by("time").addEventListener("input", () => show(Number(by("time").value)));
  by("live").addEventListener("click", () => {
    by("time").value = by("time").max;
    show(frames.length - 1);
  });
  by("play").addEventListener("click", playOn);
  by("filter").addEventListener("input", () => { if (shown !== null) show(shown); });
  addEventListener("resize", () => Object.values(charts).forEach((one) => one.resize()));
  theme();
  run();
})();
