// Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
// The heat map of step times: ranks downwards, steps to the right, slow rows outlined. The table says the same.
"use strict";
(() => {
  // Cividis, sampled: read alike by people with and without a colour deficiency.
  const ramp = [[0, 34, 78], [53, 69, 108], [102, 105, 112], [148, 142, 119], [200, 184, 102], [254, 232, 56]];
  let shown = null;

  function colour(ratio) {  // 0.8 is dark, 1.5 and more is bright
    const at = Math.min(Math.max((ratio - 0.8) / 0.7, 0), 1) * (ramp.length - 1);
    const low = Math.floor(at), high = Math.min(low + 1, ramp.length - 1);
    return `rgb(${ramp[low].map((one, i) => Math.round(one + (ramp[high][i] - one) * (at - low))).join(" ")})`;
  }

  function draw(canvas, grid) {
    const scale = window.devicePixelRatio || 1;
    const wide = canvas.clientWidth, tall = canvas.clientHeight;
    canvas.width = wide * scale; canvas.height = tall * scale;
    const pen = canvas.getContext("2d");
    pen.scale(scale, scale);
    const style = getComputedStyle(document.documentElement);
    pen.fillStyle = style.getPropertyValue("--code");
    pen.fillRect(0, 0, wide, tall);
    const w = wide / grid.columns.length, h = tall / grid.rows.length;
    grid.rows.forEach((row, y) => row.values.forEach((value, x) => {
      if (value === null) return;
      pen.fillStyle = colour(value);
      pen.fillRect(Math.floor(x * w), Math.floor(y * h), Math.ceil(w), Math.ceil(h));
    }));
    pen.lineWidth = 2;
    pen.strokeStyle = style.getPropertyValue("--bad");
    pen.fillStyle = style.getPropertyValue("--bad");
    grid.rows.forEach((row, y) => {
      if (!row.stragglers) return;
      pen.strokeRect(1, Math.floor(y * h) + 1, wide - 2, Math.max(Math.ceil(h) - 1, 3));
      pen.beginPath();  // a pointer too: a row of a tall map is thinner than an outline can show
      pen.moveTo(wide, y * h + h / 2 - 6); pen.lineTo(wide - 10, y * h + h / 2); pen.lineTo(wide, y * h + h / 2 + 6);
      pen.fill();
    });
  }

  function name(row) {
    const ranks = row.first === row.last ? `rank ${row.first}` : `ranks ${row.first} to ${row.last}`;
    return row.node ? `${ranks} on ${row.node}` : ranks;
  }

  function at(event) {
    const { canvas, grid } = shown, box = canvas.getBoundingClientRect();
    const y = Math.floor((event.clientY - box.top) / box.height * grid.rows.length);
    const x = Math.floor((event.clientX - box.left) / box.width * grid.columns.length);
    return [grid.rows[y], grid.columns[x], grid.rows[y]?.values[x]];
  }

  async function load() {
    const canvas = document.querySelector("canvas.heat");
    if (!canvas) return;
    const answer = await fetch(canvas.dataset.twin, { headers: { Accept: "application/json" } });
    if (!answer.ok) return;
    const { grid } = await answer.json();
    if (!grid) return;
    shown = { canvas, grid };
    draw(canvas, grid);
    canvas.dataset.drawn = String(grid.rows.length);
    const told = document.getElementById("pointed");
    canvas.onmousemove = (event) => {
      const [row, step, value] = at(event);
      if (row) told.textContent = `${name(row)}, step ${step}: ${value === null ? "not reported" : `${value.toFixed(2)} times the median`}`;
    };
    canvas.onclick = (event) => {
      const [row] = at(event);
      if (!row || row.first === row.last) return;
      const address = new URL(location.href);
      address.searchParams.set("from", row.first); address.searchParams.set("to", row.last);
      location.href = address;
    };
  }

  document.addEventListener("relight:replaced", load);
  window.addEventListener("resize", () => shown && draw(shown.canvas, shown.grid));
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => shown && draw(shown.canvas, shown.grid));
  load();
})();
