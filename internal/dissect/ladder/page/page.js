"use strict";
// The page of 'gosmc dump --html'. All text from the capture goes through textContent, never
// through markup.
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const $ = (id) => document.getElementById(id);
  const make = (tag, attrs, ...children) => {
    const e = document.createElement(tag);
    for (const [k, v] of Object.entries(attrs || {})) {
      if (k === "on") for (const [type, f] of Object.entries(v)) e.addEventListener(type, f);
      else e.setAttribute(k, v);
    }
    e.append(...children);
    return e;
  };
  const svg = (tag, attrs, ...children) => {
    const e = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const [k, v] of Object.entries(attrs || {})) e.setAttribute(k, v);
    e.append(...children);
    return e;
  };
  const size = (n) => {
    if (n < 10000 && (n < 1024 || n % 1024)) return n + " B";
    for (const unit of ["KiB", "MiB", "GiB", "TiB"]) {
      n /= 1024;
      if (n < 1000 || unit === "TiB") return (n >= 100 || n === Math.trunc(n) ? n.toFixed(0) : n.toFixed(1)) + " " + unit;
    }
  };
  const seconds = (t) => t.toFixed(6);
  const canvas = document.createElement("canvas").getContext("2d");
  const fit = (text, width) => { // shortens text to a width in pixels
    canvas.font = "12px ui-monospace, 'SF Mono', 'DejaVu Sans Mono', Menlo, Consolas, monospace";
    if (canvas.measureText(text).width <= width) return text;
    let n = Math.max(1, Math.floor(text.length * width / canvas.measureText(text).width) - 1);
    while (n > 1 && canvas.measureText(text.slice(0, n) + "…").width > width) n--;
    return text.slice(0, n) + "…";
  };
  const colour = (link) => link === 0 ? 0 : 1 + (link - 1) % 7;

  // The head of the page, and the list on its left.
  $("title").textContent = data.title;
  for (const [name, value] of data.facts) $("facts").append(make("span", {class: "fact"}, name + " ", make("b", {}, value)));
  let current = -1, chosen = -1, expanded = new Set();
  const buttons = data.ladders.map((l, i) => {
    const top = make("div", {class: "top"}, make("span", {class: "name"}, l.name));
    const right = make("span", {class: "mode " + (l.mode.startsWith("SMC") && !l.declined ? "smc" : "tcp")}, l.mode);
    if (l.problems) right.append(" ", make("span", {class: "count", title: "problems"}, String(l.problems)));
    top.append(right);
    const b = make("button", {on: {click: () => show(i)}}, top, make("div", {class: "sub", title: l.title}, l.sub));
    $("list").append(make("li", {class: l.kind}, b));
    return b;
  });
  $("search").addEventListener("input", () => {
    const want = $("search").value.toLowerCase();
    data.ladders.forEach((l, i) => {
      const text = [l.name, l.title, l.mode, l.sub, ...l.facts].join(" ").toLowerCase();
      buttons[i].parentNode.hidden = !text.includes(want);
    });
  });

  // show draws a ladder.
  function show(i) {
    if (i !== current) expanded = new Set();
    if (buttons[current]) buttons[current].removeAttribute("aria-current");
    current = i;
    const l = data.ladders[i];
    buttons[i].setAttribute("aria-current", "true");
    const main = $("main");
    main.replaceChildren(make("h2", {}, l.title));
    for (const fact of l.facts) main.append(make("p", {class: "facts"}, fact));
    if (l.omitted) main.append(make("p", {class: "note"}, l.omitted + " steps in the middle are left out of this page."));
    const links = new Map();
    for (const s of l.steps) if (s.link) links.set(s.lane, s.link);
    const legend = make("p", {class: "legend"}, make("b", {class: "c0"}, "TCP"));
    for (const [lane, n] of links) legend.append("  ", make("b", {class: "c" + colour(n)}, lane));
    legend.append("   thick: many WRITEs and CDC messages, click to see them");
    main.append(legend, ladder(l));
    for (const p of l.plots) main.append(...plot(p));
  }

  // ladder returns the picture of one ladder.
  function ladder(l) {
    const W = Math.max(560, $("main").clientWidth - 40), left = 156, right = W - 12, row = 30;
    const root = svg("svg", {role: "img"}), body = [];
    let y = 34, before = null;
    const arrow = (from, to, y, cls) => {
      const d = to > from ? 1 : -1, w = cls.includes("run") ? 8 : 6;
      return [svg("line", {class: "shaft " + cls, x1: from, y1: y, x2: to - d * w, y2: y}),
        svg("path", {class: "head", d: `M${to} ${y} l${-d * (w + 4)} ${-w / 2 - 1} v${w + 2} z`})];
    };
    // line adds one row: an arrow with its text, or only text.
    const line = (o) => {
      const g = svg("g", {class: `${o.sub ? "sub" : "step"} c${colour(o.link || 0)}`});
      g.append(svg("rect", {class: "hit", x: 0, y: y - 18, width: W, height: row - 4, rx: 3}));
      if (o.time !== undefined) {
        g.append(svg("text", {class: "dim", x: 74, y: y, "text-anchor": "end"}, seconds(o.time)));
        g.append(svg("text", {class: "dim", x: 119, y: y, "text-anchor": "end"}, String(o.number)));
      }
      if (o.lane) g.append(svg("text", {class: "lane", x: 125, y: y}, o.lane));
      const text = (o.sub ? "· " : "") + o.text, room = right - left - 24;
      if (o.dir === 0) {
        g.append(svg("line", {class: "shaft " + o.cls, x1: left, y1: y, x2: right, y2: y}));
        g.append(svg("text", {x: (left + right) / 2, y: y - 5, "text-anchor": "middle"}, fit(text, room)));
      } else {
        const toServer = o.dir === 1;
        g.append(...arrow(toServer ? left : right, toServer ? right : left, y, o.cls));
        g.append(svg("text", {x: toServer ? left + 8 : right - 8, y: y - 5, "text-anchor": toServer ? "start" : "end"}, fit(text, room)));
      }
      g.append(svg("title", {}, o.text));
      if (o.click) {
        g.setAttribute("tabindex", "0");
        g.setAttribute("role", "button");
        g.addEventListener("click", o.click);
        g.addEventListener("keydown", (e) => { if (e.key === "Enter") o.click(); });
      }
      if (o.message !== undefined) g.dataset.message = o.message;
      if (o.message === chosen) g.classList.add("chosen");
      body.push(g);
      y += row;
    };
    l.steps.forEach((s, i) => {
      if (before !== null && s.time - before >= 1 && s.number >= 0) {
        body.push(svg("text", {class: "pause", x: (left + right) / 2, y: y - 4, "text-anchor": "middle"}, `⋮ ${(s.time - before).toFixed(3)} s ⋮`));
        y += 20;
      }
      if (s.number >= 0) before = s.until;
      const at = {time: s.time, number: s.number, link: s.link, lane: s.lane};
      if (s.kind === "mark") {
        const g = svg("g", {class: "c" + colour(s.link || 0)}), text = fit(s.text, right - left - 60);
        canvas.font = "12px ui-monospace, monospace";
        const half = Math.min(canvas.measureText(text).width / 2 + 12, (right - left) / 2), mid = (left + right) / 2;
        if (s.number >= 0) {
          g.append(svg("text", {class: "dim", x: 74, y: y, "text-anchor": "end"}, seconds(s.time)),
            svg("text", {class: "dim", x: 119, y: y, "text-anchor": "end"}, String(s.number)));
          if (s.lane) g.append(svg("text", {class: "lane", x: 125, y: y}, s.lane));
        }
        g.append(svg("line", {class: "markline", x1: left, y1: y - 4, x2: mid - half, y2: y - 4}),
          svg("line", {class: "markline", x1: mid + half, y1: y - 4, x2: right, y2: y - 4}),
          svg("text", {class: "marktext" + (s.wide ? " wide" : ""), x: mid, y: y, "text-anchor": "middle"}, text),
          svg("title", {}, s.text));
        body.push(g);
        y += row - 4;
      } else if (s.kind === "run") {
        const order = s.dir === 2 ? [2, 1] : [1, 2];
        let first = true;
        for (const dir of order) {
          const text = s.run[dir - 1];
          if (!text) continue;
          line({...at, ...(first ? {} : {time: s.until, number: s.last}), dir, text, cls: "run", click: () => {
            expanded.has(i) ? expanded.delete(i) : expanded.add(i);
            const top = $("main").scrollTop;
            show(current);
            $("main").scrollTop = top;
          }});
          first = false;
        }
        if (expanded.has(i)) {
          for (const n of s.messages) {
            const m = data.messages[n];
            line({time: m.time, number: m.number, dir: m.dir || 1, link: s.link, lane: s.lane, text: m.text, cls: "sub", sub: true, message: n, click: () => choose(n)});
          }
          if (s.left) {
            body.push(svg("text", {class: "pause", x: (left + right) / 2, y: y - 6, "text-anchor": "middle"}, `${s.left} more are left out of this page`));
            y += 20;
          }
        }
      } else {
        const n = s.messages[0];
        line({...at, dir: s.dir, text: s.text, cls: "", message: n, click: n === undefined ? undefined : () => choose(n)});
      }
      for (const p of s.problems) {
        body.push(svg("text", {class: "bad", x: left + 12, y: y - 8}, fit("⚠ " + p, right - left - 24), svg("title", {}, p)));
        y += 22;
      }
    });
    root.append(svg("line", {class: "life", x1: left, y1: 18, x2: left, y2: y}), svg("line", {class: "life", x1: right, y1: 18, x2: right, y2: y}),
      svg("text", {class: "dim", x: 74, y: 12, "text-anchor": "end"}, "seconds"), svg("text", {class: "dim", x: 119, y: 12, "text-anchor": "end"}, "pkt"),
      svg("text", {class: "end", x: left - 6, y: 12}, fit(l.client, (right - left) / 2 - 10)),
      svg("text", {class: "end", x: right + 6, y: 12, "text-anchor": "end"}, fit(l.server, (right - left) / 2 - 10)), ...body);
    root.setAttribute("viewBox", `0 0 ${W} ${y + 8}`);
    root.setAttribute("height", y + 8);
    return root;
  }

  // choose shows a message on the right.
  function choose(n) {
    chosen = n;
    for (const g of document.querySelectorAll("g[data-message]")) g.classList.toggle("chosen", Number(g.dataset.message) === n);
    const m = data.messages[n], aside = $("detail");
    const own = data.ladders[current].steps.flatMap((s) => s.messages), at = own.indexOf(n);
    const go = (k) => make("button", {title: k < 0 ? "previous message (k)" : "next message (j)", on: {click: () => step(k)}}, k < 0 ? "↑" : "↓");
    aside.replaceChildren(make("div", {class: "pager"}, go(-1), " ", go(1)), make("h2", {}, m.name),
      make("p", {class: "meta"}, `packet ${m.number}, ${seconds(m.time)} s, ${m.src} → ${m.dst}` + (m.lane ? `, ${m.lane}` : "") + (at >= 0 ? `, ${at + 1} of ${own.length}` : "")));
    if (m.text) aside.append(make("p", {class: "meta"}, m.text));
    for (const p of m.problems) aside.append(make("p", {class: "bad"}, p));
    if (!m.hex) { aside.append(make("p", {class: "meta"}, "It has no bytes of its own.")); return; }
    const bytes = m.hex.length / 2, fieldsOf = Array.from({length: bytes}, () => []);
    const fields = m.fields.map(([name, key, offset, len, mask, text]) => ({name: data.strings[name], key: data.strings[key], offset, len, mask, text: data.strings[text]}));
    fields.forEach((f, i) => { for (let b = f.offset; b < f.offset + f.len && b < bytes; b++) fieldsOf[b].push(i); });
    const cells = [], ascii = [], pre = make("div", {class: "hex mono"});
    const rows = fields.map((f, i) => {
      const place = f.mask ? `${f.offset} & 0x${f.mask}` : f.len > 1 ? `${f.offset}–${f.offset + f.len - 1}` : String(f.offset);
      const name = make("td", {}, f.name);
      if (f.key) name.append(make("span", {class: "key mono"}, f.key));
      return make("tr", {on: {mouseenter: () => light([i]), mouseleave: () => light([])}}, make("td", {class: "mono"}, place), name, make("td", {class: "mono"}, f.text));
    });
    function light(list, from) {
      const on = new Set();
      for (const i of list) for (let b = fields[i].offset; b < fields[i].offset + fields[i].len; b++) on.add(b);
      cells.forEach((c, b) => { c.classList.toggle("on", on.has(b)); ascii[b].classList.toggle("on", on.has(b)); });
      rows.forEach((r, i) => r.classList.toggle("on", list.includes(i)));
      if (from !== undefined && list.length) rows[list[0]].scrollIntoView({block: "nearest"});
    }
    for (let r = 0; r < bytes; r += 16) {
      pre.append(make("span", {class: "off"}, r.toString(16).padStart(4, "0") + "  "));
      const text = [];
      for (let b = r; b < r + 16; b++) {
        if (b >= bytes) { pre.append("   "); continue; }
        const value = parseInt(m.hex.slice(2 * b, 2 * b + 2), 16);
        const on = {mouseenter: () => light(fieldsOf[b], b), mouseleave: () => light([])};
        const odd = fieldsOf[b].length && fieldsOf[b][0] % 2 ? " odd" : "";
        cells[b] = make("span", {class: "b" + odd, on}, m.hex.slice(2 * b, 2 * b + 2));
        ascii[b] = make("span", {class: "b" + odd, on}, value > 32 && value < 127 ? String.fromCharCode(value) : "·");
        pre.append(cells[b], b % 8 === 7 ? "  " : " ");
        text.push(ascii[b]);
      }
      pre.append(...text, "\n");
    }
    aside.append(pre);
    if (m.size > bytes) aside.append(make("p", {class: "meta"}, `The first ${bytes} of ${m.size} bytes.`));
    aside.append(make("table", {class: "fields"}, make("tbody", {}, ...rows)));
  }

  // step goes to the message that is k on.
  function step(k) {
    if (current < 0) return;
    const own = data.ladders[current].steps.flatMap((s) => s.messages), at = own.indexOf(chosen);
    const n = own[Math.min(Math.max(at + k, 0), own.length - 1)];
    if (n === undefined) return;
    choose(n);
    const g = document.querySelector(`g[data-message="${n}"]`);
    if (g) g.scrollIntoView({block: "nearest"});
  }
  document.addEventListener("keydown", (e) => {
    if (e.target.tagName === "INPUT") return;
    if (e.key === "j") step(1);
    if (e.key === "k") step(-1);
  });

  // plot returns the pictures of one direction: cursors above, the window below.
  function plot(p) {
    const W = Math.max(560, $("main").clientWidth - 40), left = 76, right = W - 14, H = 150, top = 8, wTop = H + 22, wH = 80;
    const root = svg("svg", {viewBox: `0 0 ${W} ${wTop + wH + 24}`, height: wTop + wH + 24, role: "img"});
    const t0 = p.t[0], t1 = Math.max(p.t[p.t.length - 1], t0 + 1e-6), most = Math.max(1, ...p.p, ...p.c);
    const x = (t) => left + (right - left) * (t - t0) / (t1 - t0), y = (v) => top + H - H * v / most;
    const full = Math.max(p.capacity, ...p.w, 1), wy = (v) => wTop + wH - wH * v / full;
    const steps = (list, y) => list.map((v, i) => (i ? `H${x(p.t[i]).toFixed(1)}V` : `M${x(p.t[0]).toFixed(1)} `) + y(v).toFixed(1)).join("");
    for (const v of [0, most / 2, most]) {
      root.append(svg("line", {class: v ? "grid" : "axis", x1: left, x2: right, y1: y(v), y2: y(v)}), svg("text", {class: "dim", x: left - 6, y: y(v) + 4, "text-anchor": "end"}, size(Math.round(v))));
    }
    root.append(svg("line", {class: "axis", x1: left, x2: right, y1: wy(0), y2: wy(0)}), svg("text", {class: "dim", x: left - 6, y: wy(0) + 4, "text-anchor": "end"}, "0 B"));
    if (p.capacity) root.append(svg("line", {class: "capacity", x1: left, x2: right, y1: wy(p.capacity), y2: wy(p.capacity)}), svg("text", {class: "dim", x: left - 6, y: wy(p.capacity) + 4, "text-anchor": "end"}, size(p.capacity)));
    for (let i = 0; i <= 4; i++) {
      const t = t0 + (t1 - t0) * i / 4;
      root.append(svg("text", {class: "dim", x: x(t), y: wTop + wH + 16, "text-anchor": i === 0 ? "start" : i === 4 ? "end" : "middle"}, seconds(t) + " s"));
    }
    root.append(svg("path", {class: "produced", d: steps(p.p, y)}), svg("path", {class: "consumed", d: steps(p.c, y)}));
    if (p.w.some((v) => v >= 0)) { // pieces where it is known
      let from = p.w.findIndex((v) => v >= 0), d = "";
      for (let i = from; i < p.w.length; i++) d += i === from ? `M${x(p.t[i]).toFixed(1)} ${wy(p.w[i]).toFixed(1)}` : `H${x(p.t[i]).toFixed(1)}` + (p.w[i] >= 0 ? `V${wy(p.w[i]).toFixed(1)}` : "");
      root.append(svg("path", {class: "windowline", d}), svg("path", {class: "window", d: d + `V${wy(0)}H${x(p.t[from]).toFixed(1)}Z`}));
    }
    const cross = svg("line", {class: "cross", y1: top, y2: wTop + wH, visibility: "hidden"}), label = svg("text", {class: "dim", y: top + 10, visibility: "hidden"});
    root.append(cross, label);
    root.addEventListener("mousemove", (e) => {
      const box = root.getBoundingClientRect(), t = t0 + (t1 - t0) * ((e.clientX - box.left) * W / box.width - left) / (right - left);
      let i = p.t.findLastIndex((v) => v <= t);
      i = Math.max(i, 0);
      const at = x(p.t[i]);
      cross.setAttribute("x1", at); cross.setAttribute("x2", at);
      label.textContent = `${seconds(p.t[i])} s  written ${size(p.p[i])}  read ${size(p.c[i])}` + (p.w[i] >= 0 ? `  window ${size(p.w[i])}` : "");
      const end = at > (left + right) / 2;
      label.setAttribute("x", end ? at - 6 : at + 6); label.setAttribute("text-anchor", end ? "end" : "start");
      cross.setAttribute("visibility", "visible"); label.setAttribute("visibility", "visible");
    });
    root.addEventListener("mouseleave", () => { cross.setAttribute("visibility", "hidden"); label.setAttribute("visibility", "hidden"); });
    const legend = make("p", {class: "legend"}, make("b", {class: "produced"}, "written"), " and ", make("b", {class: "consumed"}, "read"), " bytes by the cursors;  ",
      make("b", {class: "window"}, "window"), " below" + (p.capacity ? ", of " : ""));
    if (p.capacity) legend.append(make("b", {class: "capacity"}, size(p.capacity)));
    return [make("h3", {}, p.title), legend, root];
  }

  let timer = 0;
  addEventListener("resize", () => { clearTimeout(timer); timer = setTimeout(() => { if (current >= 0) show(current); }, 100); });
  // The address can name what to open: #2 is the second ladder, #2/7 the message 7 of the page.
  const [first, message] = location.hash.slice(1).split("/").map(Number);
  if (data.ladders.length) show(first > 0 && first <= data.ladders.length ? first - 1 : Math.max(0, data.ladders.findIndex((l) => l.kind === "conn")));
  else $("main").append(make("p", {class: "note"}, "The capture has no message of SMC and no RoCEv2 packet."));
  if (message >= 0 && message < data.messages.length) choose(message);
  else if (data.messages.length) step(0);
})();
