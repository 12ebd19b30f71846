// Bars over time, drawn by uPlot.

import { uPlot } from './vendor/uplot.js';

// Draws into `box`; returns how to take the chart away.
export function draw(box, data, color, dark) {
  box.replaceChildren();
  const ink = dark ? '#9fb0c0' : '#55636f';
  const grid = { stroke: dark ? '#263341' : '#e6ebf0', width: 1 };
  const days = data[0].at(-1) - data[0][0] > 2 * 86_400;
  const time = days ? { day: 'numeric', month: 'short' } : { hour: '2-digit', minute: '2-digit' };
  const times = (_, at) => at.map((it) => new Date(it * 1000).toLocaleString('en-GB', time));
  const axis = { stroke: ink, grid, ticks: grid, font: '11px system-ui' };
  const bars = uPlot.paths.bars({ size: [0.9, 40] });
  const chart = new uPlot({
    width: Math.max(280, box.clientWidth),
    height: 150,
    padding: [8, 8, 0, 0],
    legend: { live: false },
    cursor: { y: false },
    scales: { y: { range: (_, __, max) => [0, Math.max(4, max * 1.1)] } },
    axes: [{ ...axis, values: times }, { ...axis, size: 44 }],
    series: [
      {},
      { label: 'calls', stroke: color, fill: color, paths: bars, points: { show: false } },
      { label: 'failed', stroke: '#d1493f', fill: '#d1493f', paths: bars, points: { show: false } },
    ],
  }, data, box);
  const resized = new ResizeObserver(() => chart.setSize({ width: Math.max(280, box.clientWidth), height: 150 }));
  resized.observe(box);
  return () => { resized.disconnect(); chart.destroy(); };
}
