"use strict";
// Shows the values under the pointer in the caption of a chart.
const data = JSON.parse(document.getElementById("data").textContent);

function nearest(points, step) {
  return points.reduce((best, p) => (Math.abs(p[0] - step) < Math.abs(best[0] - step) ? p : best));
}

document.querySelectorAll("figure").forEach((figure, number) => {
  const chart = data.charts[number];
  const [svg, caption] = [figure.querySelector("svg"), figure.querySelector("figcaption")];
  if (!svg || !chart.steps) return;
  const cursor = svg.querySelector(".cursor");
  const idle = caption.innerHTML;
  svg.addEventListener("pointermove", (event) => {
    const box = svg.getBoundingClientRect();
    const [left, right, width] = chart.frame;
    const part = ((event.clientX - box.left) / box.width - left) / (right - left);
    const [first, last] = chart.steps;
    const at = nearest(chart.series[0].points, first + Math.min(Math.max(part, 0), 1) * (last - first))[0];
    const x = width * (left + ((at - first) / (last - first)) * (right - left));
    cursor.setAttribute("x1", x);
    cursor.setAttribute("x2", x);
    cursor.style.visibility = "visible";
    const value = (s) => {
      const [step, value] = nearest(s.points, at);
      return `<span><i class="dot ${s.colour}"></i>step ${step} <b>${Number(value.toPrecision(5))}</b></span>`;
    };
    caption.innerHTML = chart.series.filter((s) => s.points.length).map(value).join("");
  });
  svg.addEventListener("pointerleave", () => {
    cursor.style.visibility = "hidden";
    caption.innerHTML = idle;
  });
});
