"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const byId = (id) => document.getElementById(id);
  const body = byId("table").tBodies[0];
  const lines = Array.from(body.rows);
  const words = lines.map((line) => line.textContent.toLowerCase());
  const hidden = new Set();
  let shown = lines.map(() => true);

  // --- the table: what is looked for, and in which order
  const filter = () => {
    const wanted = byId("words").value.toLowerCase().split(/\s+/).filter(Boolean);
    const choices = [[data.family, byId("family").value], [data.data, byId("data-set").value], [data.setting, byId("setting").value]];
    shown = lines.map((_, index) =>
      wanted.every((word) => words[index].includes(word)) &&
      choices.every(([column, value]) => value === "" || column[index] === Number(value)) &&
      !hidden.has(data.family[index]));
    lines.forEach((line, index) => { line.hidden = !shown[index]; });
    const count = shown.filter(Boolean).length;
    byId("count").textContent = count === lines.length ? `${count} rows.` : `${count} of ${lines.length} rows.`;
    draw();
  };
  const key = (line, column) => {
    const cell = line.cells[column];
    if (!("sort" in cell.dataset)) return cell.textContent.toLowerCase();
    return cell.dataset.sort === "" ? null : Number(cell.dataset.sort);
  };
  Array.from(byId("table").tHead.rows[0].cells).forEach((head, column) => {
    const button = head.querySelector("button");
    if (!button) return;
    button.addEventListener("click", () => {
      const down = head.getAttribute("aria-sort") === "ascending";
      for (const other of head.parentNode.cells) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      const keyed = lines.map((line) => [key(line, column), line]);
      keyed.sort(([a], [b]) => {
        if (a === null || b === null) return (a === null) - (b === null);  // what is not there comes last
        return (a < b ? -1 : a > b ? 1 : 0) * (down ? -1 : 1);
      });
      body.append(...keyed.map(([, line]) => line));
    });
  });

  // --- the plane
  const svg = byId("scatter");
  const make = (name, attributes, text) => {
    const node = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [attribute, value] of Object.entries(attributes)) node.setAttribute(attribute, value);
    if (text !== undefined) node.textContent = text;
    return node;
  };
  const label = (value) => {
    const size = Math.abs(value);
    return size !== 0 && (size < 0.001 || size >= 1e5) ? value.toExponential(1) : String(Number(value.toPrecision(3)));
  };
  const steps = (low, high) => {
    const rough = (high - low) / 7, power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 2.5, 5, 10].map((factor) => factor * power).find((size) => size >= rough);
    const ticks = [];
    for (let index = Math.ceil(low / step); index * step <= high; index += 1) ticks.push(index * step);
    return ticks;
  };
  const decades = (low, high) => {  // of logarithms: 1, 10, 100, …, and 2 and 5 times them where there is room
    const every = Math.ceil((high - low) / 7), ticks = [];
    for (let power = Math.floor(low); power <= high; power += every) {
      for (const factor of high - low < 3 ? [1, 2, 5] : [1]) ticks.push(factor * 10 ** power);
    }
    return ticks.filter((value) => Math.log10(value) >= low && Math.log10(value) <= high);
  };
  const axis = (values, log) => {
    const turned = values.map((value) => (log ? Math.log10(value) : value));
    let low = Math.min(...turned), high = Math.max(...turned);
    if (!(high > low)) { const half = log ? 0.5 : 0.5 * Math.max(1, Math.abs(low)); low -= half; high += half; }
    const room = 0.04 * (high - low);
    low -= room; high += room;
    return { share: (value) => ((log ? Math.log10(value) : value) - low) / (high - low),
             ticks: !log ? steps(low, high) : high - low < 1 ? steps(10 ** low, 10 ** high) : decades(low, high) };
  };
  const draw = () => {
    const width = Math.max(300, svg.clientWidth), height = Math.min(440, Math.max(300, 0.55 * width));  // letters keep their size
    const box = { left: 60, right: width - 14, top: 22, bottom: height - 44 };
    const [across, up] = [byId("across").value, byId("up").value].map(Number);
    const [logX, logY] = [byId("log-across").checked, byId("log-up").checked];
    const can = (value, log) => value !== null && (!log || value > 0);
    const points = [];
    data.values.forEach((row, index) => {
      if (shown[index] && can(row[across], logX) && can(row[up], logY)) points.push([row[across], row[up], index]);
    });
    svg.replaceChildren();
    svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    byId("drawn").textContent = `${points.length} rows that have both numbers${logX || logY ? " above 0" : ""}.`;
    if (!points.length) return;
    const x = axis(points.map(([value]) => value), logX), y = axis(points.map(([, value]) => value), logY);
    const at = (a, b) => [box.left + x.share(a) * (box.right - box.left), box.bottom - y.share(b) * (box.bottom - box.top)];
    for (const value of x.ticks) {
      const left = box.left + x.share(value) * (box.right - box.left);
      svg.append(make("path", { d: `M${left} ${box.top}V${box.bottom}`, class: "grid" }));
      svg.append(make("text", { x: left, y: box.bottom + 18, "text-anchor": "middle" }, label(value)));
    }
    for (const value of y.ticks) {
      const level = box.bottom - y.share(value) * (box.bottom - box.top);
      svg.append(make("path", { d: `M${box.left} ${level}H${box.right}`, class: "grid" }));
      svg.append(make("text", { x: box.left - 8, y: level + 4, "text-anchor": "end" }, label(value)));
    }
    svg.append(make("text", { x: (box.left + box.right) / 2, y: height - 8, "text-anchor": "middle" }, data.numbers[across] + (logX ? " · log axis" : "")));
    svg.append(make("text", { x: 4, y: 12 }, data.numbers[up] + (logY ? " · log axis" : "")));
    for (const [a, b, index] of points) {
      const [cx, cy] = at(a, b);
      const dot = make("circle", { cx, cy, r: 4.5, class: data.looks[data.family[index]], "data-index": index });
      dot.append(make("title", {}, `${data.names[index]} (${data.families[data.family[index]]}): ${label(a)}, ${label(b)}`));
      svg.append(dot);
    }
  };
  svg.addEventListener("click", (event) => {
    const index = event.target.getAttribute && event.target.getAttribute("data-index");
    if (index === null || index === undefined) return;
    for (const node of document.querySelectorAll(".lit")) node.classList.remove("lit");
    event.target.classList.add("lit");
    lines[index].classList.add("lit");
    lines[index].scrollIntoView({ block: "center" });
  });
  for (const id of ["across", "up"]) {
    data.numbers.forEach((name, index) => byId(id).append(new Option(name, index)));
    byId(id).addEventListener("change", draw);
  }
  const measured = data.numbers.map((_, column) => data.values.filter((row) => row[column] !== null).length);
  const first = data.numbers.findIndex((name, column) => column > 0 && measured[column] > 0);
  byId("across").value = Math.max(first, 0);
  byId("up").value = measured[0] ? 0 : data.numbers.length - 1;
  for (const id of ["log-across", "log-up"]) byId(id).addEventListener("change", draw);
  for (const chip of document.querySelectorAll(".chip")) {
    chip.addEventListener("click", () => {
      const family = Number(chip.dataset.family), on = hidden.has(family);
      if (on) hidden.delete(family); else hidden.add(family);
      chip.setAttribute("aria-pressed", String(on));
      filter();
    });
  }
  byId("words").addEventListener("input", filter);
  for (const id of ["family", "data-set", "setting"]) byId(id).addEventListener("change", filter);
  window.addEventListener("resize", draw);
  draw();
})();
