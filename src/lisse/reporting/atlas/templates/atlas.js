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
    const choices = [[1, byId("family").value], [2, byId("data-set").value]];
    const columns = Array.from(byId("table").tHead.rows[0].cells);
    choices.push([columns.length - 4, byId("setting").value]);
    shown = lines.map((line, index) =>
      wanted.every((word) => words[index].includes(word)) &&
      choices.every(([column, value]) => !value || line.cells[column].textContent === value) &&
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
  const box = { left: 70, right: 745, top: 14, bottom: 372 };
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
  const axis = (values, log) => {
    const turned = values.map((value) => (log ? Math.log10(value) : value));
    let low = Math.min(...turned), high = Math.max(...turned);
    if (!(high > low)) { low -= 0.5; high += 0.5; }
    const room = 0.04 * (high - low);
    low -= room; high += room;
    let ticks = Array.from({ length: 5 }, (_, index) => low + ((index + 0.5) * (high - low)) / 5);
    if (!log) {
      const rough = (high - low) / 5, power = 10 ** Math.floor(Math.log10(rough));
      const step = [1, 2, 5, 10].map((factor) => factor * power).find((size) => size >= rough);
      ticks = [];
      for (let index = Math.ceil(low / step); index * step <= high; index += 1) ticks.push(index * step);
    }
    return { share: (value) => ((log ? Math.log10(value) : value) - low) / (high - low),
             ticks: ticks.map((value) => (log ? 10 ** value : value)) };
  };
  const draw = () => {
    const [across, up] = [byId("across").value, byId("up").value].map((name) => data.numbers.indexOf(name));
    const [logX, logY] = [byId("log-across").checked, byId("log-up").checked];
    const can = (value, log) => value !== null && (!log || value > 0);
    const points = [];
    data.values.forEach((row, index) => {
      if (shown[index] && can(row[across], logX) && can(row[up], logY)) points.push([row[across], row[up], index]);
    });
    svg.replaceChildren();
    byId("drawn").textContent = `${points.length} networks that have both numbers${logX || logY ? " above 0" : ""}.`;
    if (!points.length) return;
    const x = axis(points.map(([value]) => value), logX), y = axis(points.map(([, value]) => value), logY);
    const at = (a, b) => [box.left + x.share(a) * (box.right - box.left), box.bottom - y.share(b) * (box.bottom - box.top)];
    for (const value of x.ticks) {
      const left = box.left + x.share(value) * (box.right - box.left);
      svg.append(make("path", { d: `M${left} ${box.top}V${box.bottom}`, class: "grid" }));
      svg.append(make("text", { x: left, y: box.bottom + 18, "text-anchor": "middle" }, label(value)));
    }
    for (const value of y.ticks) {
      const height = box.bottom - y.share(value) * (box.bottom - box.top);
      svg.append(make("path", { d: `M${box.left} ${height}H${box.right}`, class: "grid" }));
      svg.append(make("text", { x: box.left - 8, y: height + 4, "text-anchor": "end" }, label(value)));
    }
    svg.append(make("text", { x: (box.left + box.right) / 2, y: 410, "text-anchor": "middle" }, byId("across").value + (logX ? " · log axis" : "")));
    svg.append(make("text", { x: 4, y: 11 }, byId("up").value + (logY ? " · log axis" : "")));
    for (const [a, b, index] of points) {
      const [cx, cy] = at(a, b);
      const dot = make("circle", { cx, cy, r: 4.5, class: `f${data.family[index]}`, "data-index": index });
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
    for (const name of data.numbers) byId(id).append(new Option(name, name));
    byId(id).addEventListener("change", draw);
  }
  const measured = data.numbers.map((_, column) => data.values.filter((row) => row[column] !== null).length);
  const first = data.numbers.findIndex((name, column) => column > 0 && measured[column] > 0);
  byId("across").value = data.numbers[Math.max(first, 0)];
  byId("up").value = measured[0] ? data.numbers[0] : data.numbers[data.numbers.length - 1];
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
  draw();
})();
