"use strict";
(() => {
  const charts = JSON.parse(document.getElementById("data").textContent);
  const views = [];
  let axis = "steps";

  function element(name, attributes = {}, ...children) {
    const isPicture = ["svg", "g", "path", "line", "circle", "text", "rect", "clipPath", "title"].includes(name);
    const made = isPicture ? document.createElementNS("http://www.w3.org/2000/svg", name) : document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    made.append(...children);
    return made;
  }

  // Numbers in words, as the tables have them.
  function amount(value) {
    if (value === null || value === undefined) return "–";
    const size = Math.abs(value);
    if (size >= 10000) return value.toLocaleString("en", { maximumFractionDigits: 0 });
    return value.toFixed(size >= 10 || size === 0 ? 1 : size >= 1 ? 2 : 3);
  }
  function short(value) {
    for (const [unit, suffix] of [[1e9, "B"], [1e6, "M"], [1e3, "k"]])
      if (Math.abs(value) >= unit) return `${+(value / unit).toPrecision(4)}${suffix}`;
    return `${+value.toPrecision(4)}`;
  }
  function timeUnit(longest) {
    if (longest < 2) return { factor: 60, name: "seconds", suffix: " s" };
    return longest > 240 ? { factor: 1 / 60, name: "hours", suffix: " h" } : { factor: 1, name: "minutes", suffix: " min" };
  }
  function ticks(low, high, most) {
    const rough = (high - low) / Math.max(1, most);
    const power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 2.5, 5, 10].map((factor) => factor * power).find((size) => size >= rough);
    const found = [];
    for (let place = Math.ceil(low / step - 1e-9); place * step <= high + step * 1e-9; place++) found.push(place * step);
    return found;
  }
  function path(xs, ys) {
    let text = "", isOpen = false;
    ys.forEach((y, place) => {
      if (y === null) { isOpen = false; return; }
      text += `${isOpen ? "L" : "M"}${xs[place].toFixed(1)} ${y.toFixed(1)}`;
      isOpen = true;
    });
    return text;
  }

  class View {
    constructor(figure) {
      this.chart = charts[figure.dataset.chart];
      this.plot = figure.querySelector(".plot");
      this.keys = figure.querySelector(".keys");
      this.spoken = figure.querySelector("[aria-live]");
      this.hidden = new Set();
      this.place = null; // of the cursor, on the grid of the longest curve
      this.makeKeys();
      this.plot.addEventListener("pointermove", (event) => this.point(event));
      this.plot.addEventListener("pointerdown", (event) => this.point(event));
      this.plot.addEventListener("pointerleave", (event) => { if (event.pointerType === "mouse") this.move(null); });
      this.plot.addEventListener("blur", () => this.move(null));
      this.plot.addEventListener("keydown", (event) => this.press(event));
      new ResizeObserver(() => this.draw()).observe(this.plot);
      this.draw();
    }

    makeKeys() {
      const { series, levels } = this.chart;
      const entries = series.map((one) => [one.label, `swatch s${one.colour % 8}`, one.label]);
      levels.forEach((level) => entries.push([`level ${level.label}`, "swatch dash", `${level.label} ${amount(level.y)}`]));
      if (entries.length < 2) return;
      for (const [name, look, text] of entries) {
        const key = element("button", { type: "button", "aria-pressed": "true" }, element("span", { class: look }), text);
        key.addEventListener("click", () => {
          const wasShown = !this.hidden.has(name);
          wasShown ? this.hidden.add(name) : this.hidden.delete(name);
          key.setAttribute("aria-pressed", String(!wasShown));
          this.draw();
        });
        this.keys.append(key);
      }
    }

    get series() { return this.chart.series.filter((one) => !this.hidden.has(one.label) && one[axis].x.length); }
    get levels() { return this.chart.levels.filter((one) => !this.hidden.has(`level ${one.label}`)); }

    measure() {
      const series = this.series;
      let right = 0, low = Infinity, high = -Infinity;
      const see = (value) => { if (value !== null && value !== undefined) { low = Math.min(low, value); high = Math.max(high, value); } };
      for (const one of series) {
        right = Math.max(right, one[axis].x.at(-1));
        one[axis].mean.forEach(see);
        if (!one.is_plain) one[axis].runs.forEach((run) => run.forEach(see)); // the band may reach further: two seeds have a huge one
        (one.dots?.y ?? []).forEach(see);
        (one.marks ?? []).forEach((mark) => see(mark.y));
        if (one.from_zero) see(0);
      }
      this.levels.forEach((level) => see(level.y));
      if (!(low < high)) { low = (Number.isFinite(low) ? low : 0) - 1; high = low + 2; }
      const slack = (high - low) * 0.06;
      return { right: right || 1, low: series.some((one) => one.from_zero) ? low : low - slack, high: high + slack };
    }

    draw() {
      const width = this.plot.clientWidth, height = this.plot.clientHeight;
      if (!width) return;
      const isNarrow = width < 520;
      const { right, low, high } = this.measure();
      const unit = axis === "steps" ? { factor: 1, name: "env steps", suffix: " steps" } : timeUnit(right);
      const yTicks = ticks(low, high, height / 55);
      const names = isNarrow ? 46 : Math.min(150, 58 + 7 * Math.max(...this.chart.series.map((one) => (this.chart.series.length > 1 ? one.label.length : 0))));
      const box = { left: 12 + 7 * Math.max(...yTicks.map((tick) => short(tick).length)), top: 8, right: width - names, bottom: height - 38 };
      const x = (value) => box.left + (value / right) * (box.right - box.left);
      const y = (value) => box.bottom - ((value - low) / (high - low)) * (box.bottom - box.top);
      const ys = (values) => values.map((value) => (value === null ? null : y(value)));
      const clip = `clip-${views.indexOf(this)}-${this.plot.parentNode.dataset.chart}`;
      const svg = element("svg", { width, height, "aria-hidden": "true" },
        element("clipPath", { id: clip }, element("rect", { x: box.left, y: box.top - 3, width: box.right - box.left + 4, height: box.bottom - box.top + 6 })));
      for (const tick of yTicks) {
        svg.append(element("line", { class: "grid", x1: box.left, x2: box.right, y1: y(tick), y2: y(tick) }));
        svg.append(element("text", { x: box.left - 7, y: y(tick) + 4, "text-anchor": "end" }, short(tick)));
      }
      svg.append(element("line", { class: "axis", x1: box.left, x2: box.right, y1: box.bottom, y2: box.bottom }));
      for (const tick of ticks(0, right * unit.factor, (box.right - box.left) / 80))
        svg.append(element("text", { x: x(tick / unit.factor), y: box.bottom + 17, "text-anchor": "middle" }, short(tick)));
      svg.append(element("text", { x: (box.left + box.right) / 2, y: height - 4, "text-anchor": "middle" }, unit.name));
      const inside = element("g", { "clip-path": `url(#${clip})` });
      svg.append(inside);
      if (!this.series.length)
        svg.append(element("text", { x: (box.left + box.right) / 2, y: (box.top + box.bottom) / 2, "text-anchor": "middle" }, "nothing to draw yet"));
      for (const level of this.levels) inside.append(element("line", { class: "level", x1: box.left, x2: box.right, y1: y(level.y), y2: y(level.y) }));
      for (const one of this.series) this.drawSeries(inside, one, x, y, ys);
      this.labelEnds(svg, box, x, y, isNarrow);
      this.cursor = element("g");
      svg.append(this.cursor);
      this.plot.replaceChildren(svg);
      Object.assign(this, { box, x, y, unit, right });
      this.move(this.place, false);
    }

    drawSeries(group, one, x, y, ys) {
      const curve = one[axis], xs = curve.x.map(x), colour = `s${one.colour % 8}`;
      if (one.dots)
        one.dots.y.forEach((value, place) => group.append(element("circle", { class: `${colour} area dot`, cx: x(one.dots[axis][place]).toFixed(1), cy: y(value).toFixed(1), r: 1.8 })));
      const banded = curve.low.map((value, place) => (value === null ? null : place)).filter((place) => place !== null);
      if (banded.length > 1 && !one.is_plain) {
        const upper = path(banded.map((place) => xs[place]), banded.map((place) => y(curve.high[place])));
        const back = banded.toReversed();
        const lower = path(back.map((place) => xs[place]), back.map((place) => y(curve.low[place])));
        group.append(element("path", { class: `${colour} area band`, d: `${upper}L${lower.slice(1)}Z` }));
      }
      if (one.shows_runs) curve.runs.forEach((run) => group.append(element("path", { class: `${colour} line run`, d: path(xs, ys(run)) })));
      group.append(element("path", { class: `${colour} line mean${one.colour >= 8 ? " far" : ""}`, d: path(xs, ys(curve.mean)) }));
      for (const mark of one.marks ?? []) {
        const at = mark[axis];
        if (at === null) continue;
        const [left, top] = [x(at), y(mark.y)];
        if (mark.low !== null) group.append(element("line", { class: `${colour} line`, x1: left, x2: left, y1: y(mark.low), y2: y(mark.high) }));
        group.append(element("path", { class: `${colour} area`, d: `M${left} ${top - 5}l5 5l-5 5l-5-5Z` },
          element("title", {}, `${mark.label} at ${short(mark.steps)} steps: ${amount(mark.y)}`)));
      }
    }

    labelEnds(svg, box, x, y, isNarrow) {
      // The last values are written next to the curves; labels that would overlap are moved apart.
      const isAlone = this.chart.series.length === 1;
      const ends = this.series.map((one) => {
        const curve = one[axis], last = curve.mean.findLastIndex((value) => value !== null);
        return { one, left: x(curve.x[last]), value: curve.mean[last], top: y(curve.mean[last]) };
      }).sort((a, b) => a.top - b.top);
      ends.forEach((end, place) => { end.label = place ? Math.max(end.top, ends[place - 1].label + 15) : end.top; });
      const excess = ends.length ? ends.at(-1).label - box.bottom : 0;
      for (let place = ends.length - 1, limit = box.bottom; excess > 0 && place >= 0; place--, limit -= 15)
        ends[place].label = Math.min(ends[place].label, limit);
      const room = Math.floor((svg.getAttribute("width") - box.right - 56) / 7);
      for (const { one, left, value, top, label } of ends) {
        const name = isAlone || isNarrow ? "" : one.label.length > room ? `${one.label.slice(0, room - 1)}… ` : `${one.label} `;
        const text = this.chart.quantity === "return" ? amount(value) : short(+value.toPrecision(3));
        svg.append(element("circle", { class: `s${one.colour % 8} area`, cx: left, cy: top, r: 3.5 }));
        const words = element("text", { class: `end s${one.colour % 8}`, x: box.right + 9, y: label + 4 }, name + text);
        words.style.fill = "currentColor";
        svg.append(words);
      }
      // Above their line, or below it where another one's is in the way; who finds no room is named below the chart only.
      const taken = [];
      for (const level of this.levels.toSorted((a, b) => b.y - a.y)) {
        const free = [y(level.y) - 5, y(level.y) + 14].find((top) => top < box.bottom && taken.every((other) => Math.abs(other - top) > 13));
        if (free === undefined) continue;
        taken.push(free);
        svg.append(element("text", { class: "halo", x: box.right - 6, y: free, "text-anchor": "end" }, isNarrow ? level.label : `${level.label} ${amount(level.y)}`));
      }
    }

    // The cursor

    get grid() {
      const longest = this.series.reduce((best, one) => (!best || one[axis].x.at(-1) > best.at(-1) ? one[axis].x : best), null);
      return longest ?? [];
    }

    point(event) {
      const grid = this.grid, wanted = ((event.clientX - this.plot.getBoundingClientRect().left - this.box.left) / (this.box.right - this.box.left)) * this.right;
      if (!grid.length) return;
      this.move(grid.reduce((best, value, place) => (Math.abs(value - wanted) < Math.abs(grid[best] - wanted) ? place : best), 0), false);
    }

    press(event) {
      const last = this.grid.length - 1, here = this.place ?? last + 1;
      const stride = event.shiftKey ? 10 : 1;
      const target = { ArrowLeft: here - stride, ArrowRight: this.place === null ? 0 : here + stride, Home: 0, End: last, Escape: null }[event.key];
      if (target === undefined || last < 0) return;
      event.preventDefault();
      this.move(target === null ? null : Math.min(last, Math.max(0, target)), true);
    }

    move(place, isSpoken) {
      this.place = place;
      this.cursor.replaceChildren();
      this.plot.querySelector(".tip")?.remove();
      const grid = this.grid;
      if (place === null || !grid.length) return;
      this.place = place = Math.min(place, grid.length - 1);
      const at = grid[place], left = this.x(at);
      this.cursor.append(element("line", { class: "cursor", x1: left, x2: left, y1: this.box.top, y2: this.box.bottom }));
      const head = axis === "steps" ? `${Math.round(at).toLocaleString("en")} steps` : `${+(at * this.unit.factor).toPrecision(3)}${this.unit.suffix}`;
      const tip = element("div", { class: "tip" }, element("div", { class: "quiet" }, head));
      const words = [head];
      for (const one of this.series) {
        const curve = one[axis];
        const near = curve.x.reduce((best, value, index) => (Math.abs(value - at) < Math.abs(curve.x[best] - at) ? index : best), 0);
        const spacing = curve.x.length > 1 ? curve.x[1] - curve.x[0] : Infinity;
        const mean = Math.abs(curve.x[near] - at) <= spacing ? curve.mean[near] : null;
        if (mean === null) continue;
        const count = curve.count[near];
        const interval = curve.low[near] === null ? "" : `[${amount(curve.low[near])}, ${amount(curve.high[near])}]`;
        const seeds = count > 1 ? `n = ${count}` : "";
        this.cursor.append(element("circle", { class: `s${one.colour % 8} area`, cx: left, cy: this.y(mean), r: 4 }));
        tip.append(element("div", {}, element("span", { class: `swatch s${one.colour % 8}` }), element("span", {}, one.label), element("b", {}, amount(mean)),
          element("span", { class: "quiet" }, `${interval} ${seeds}`.trim())));
        words.push(`${one.label} ${amount(mean)} ${interval}`);
        if (one.shows_runs)
          curve.runs.forEach((run, index) => {
            if (run[near] !== null) tip.append(element("div", { class: "quiet" }, element("span", {}, one.names[index] ?? ""), element("span", {}), element("b", {}, amount(run[near]))));
          });
      }
      this.plot.append(tip);
      const isLeft = left > this.plot.clientWidth / 2;
      tip.style.left = `${isLeft ? Math.max(0, left - tip.offsetWidth - 12) : Math.min(left + 12, this.plot.clientWidth - tip.offsetWidth)}px`;
      if (isSpoken) this.spoken.textContent = words.join(", ");
    }
  }

  document.querySelectorAll(".chart").forEach((figure) => views.push(new View(figure)));
  document.querySelectorAll("input[name=axis]").forEach((choice) => {
    choice.addEventListener("change", () => {
      axis = choice.value;
      views.forEach((view) => { view.place = null; view.draw(); });
    });
    if (choice.checked) axis = choice.value; // a reloaded page remembers
  });
  views.forEach((view) => view.draw());
})();
