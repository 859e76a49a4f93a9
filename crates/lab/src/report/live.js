// Draws each figure with lines a second time, so that a reader can enlarge a part of it.
//
// Upstream:   the JSON of the figures in the page.
// Downstream: uPlot, which is part of the page.
"use strict";
(function () {
  const figures = JSON.parse(document.getElementById("figures").textContent);

  // The sign of a point: a circle, a triangle or a square, as in the still drawing. A point with a
  // count is hollow.
  function sign(context, kind, x, y, size, count) {
    context.beginPath();
    if (kind === 0) {
      context.arc(x, y, size, 0, 2 * Math.PI);
    } else if (kind === 1) {
      context.moveTo(x, y - 1.2 * size);
      context.lineTo(x + 1.2 * size, y + size);
      context.lineTo(x - 1.2 * size, y + size);
    } else {
      context.rect(x - size, y - size, 2 * size, 2 * size);
    }
    if (count) {
      const color = context.fillStyle;
      context.fillStyle = "#fff";
      context.fill();
      context.stroke();
      context.fillStyle = color;
      context.font = (11 / 3.5) * size + "px sans-serif";
      context.textAlign = "left";
      context.fillText(count, x + 1.7 * size, y - 1.7 * size);
    } else {
      context.fill();
    }
  }

  function marks(figure) {
    return function (plot) {
      const context = plot.ctx;
      const ratio = devicePixelRatio;
      context.save();
      context.beginPath();
      context.rect(plot.bbox.left, plot.bbox.top, plot.bbox.width, plot.bbox.height);
      context.clip();
      if (figure.limit) {
        const y = plot.valToPos(figure.limit.y, "y", true);
        context.strokeStyle = "#000";
        context.lineWidth = ratio;
        context.setLineDash([ratio, 3 * ratio]);
        context.beginPath();
        context.moveTo(plot.bbox.left, y);
        context.lineTo(plot.bbox.left + plot.bbox.width, y);
        context.stroke();
        context.setLineDash([]);
        context.fillStyle = "#000";
        context.font = 12 * ratio + "px sans-serif";
        context.textAlign = "left";
        context.fillText(figure.limit.name, plot.bbox.left + 6 * ratio, y - 4 * ratio);
      }
      figure.lines.forEach(function (line, index) {
        if (!plot.series[index + 1].show) {
          return;
        }
        context.fillStyle = context.strokeStyle = line.color;
        context.lineWidth = ratio;
        context.setLineDash([]);
        line.points.forEach(function (point) {
          const x = plot.valToPos(point[0], "x", true);
          const low = plot.valToPos(point[2], "y", true);
          const high = plot.valToPos(point[3], "y", true);
          context.beginPath();
          context.moveTo(x, low);
          context.lineTo(x, high);
          context.moveTo(x - 3 * ratio, low);
          context.lineTo(x + 3 * ratio, low);
          context.moveTo(x - 3 * ratio, high);
          context.lineTo(x + 3 * ratio, high);
          context.stroke();
          sign(context, line.sign, x, plot.valToPos(point[1], "y", true), 3.5 * ratio, point[4]);
        });
      });
      context.restore();
    };
  }

  function draw(figure) {
    const holder = document.getElementById(figure.id);
    const xs = figure.x;
    const data = [xs];
    const series = [{ label: figure.x_label.split(",")[0] }];
    figure.lines.forEach(function (line) {
      // A line leads over places without a point (undefined), and ends at a point that is not
      // supported (null).
      const ys = new Map(line.points.map((point) => [point[0], point[4] ? null : point[1]]));
      data.push(xs.map((x) => ys.get(x)));
      series.push({
        label: line.name,
        stroke: line.color,
        width: 1.8,
        dash: line.dash,
        spanGaps: false,
        points: { show: false },
      });
    });
    const group = (value) => String(value).replace(/\B(?=(\d{3})+$)/g, ",");
    const shown = (value) => (value == null ? "" : group(Number(value.toPrecision(4))));
    const font = "13px sans-serif";
    const borders = { "": "solid", "7,3": "dashed", "2,3": "dotted" };
    const ys = data.slice(1).flat().filter((y) => y != null);
    const is_whole = (least, most) =>
      least == null || (least === Math.min(...ys) && most === Math.max(...ys));
    const decade = (least, most) => [
      10 ** Math.floor(Math.log10(least)),
      10 ** Math.max(Math.ceil(Math.log10(most)), Math.floor(Math.log10(least)) + 1),
    ];
    // The whole figure also shows the ranges and the limit; an enlarged part what is in it.
    const y_range = function (plot, least, most) {
      const ends = is_whole(least, most) ? [figure.least, figure.most] : [least, most];
      return figure.y_is_log ? decade(...ends) : [0, 1.05 * ends[1]];
    };
    const all = (plot, values) => values;
    const x_most = xs[xs.length - 1];
    const x_whole = figure.x_is_log ? [xs[0] / 1.1, x_most * 1.1] : [0, 1.03 * x_most];
    const x_range = (plot, least, most) =>
      least === xs[0] && most === x_most ? x_whole : [least, most];
    // A logarithmic axis has a mark at each point, as in the still drawing.
    const x_marks = figure.x_is_log ? { splits: () => xs, filter: all } : {};
    const axis = {
      stroke: "#000",
      grid: { stroke: "#e4e4e4", width: 1 },
      ticks: { stroke: "#000", width: 1, size: 5 },
    };
    const is_decade = (value) => Math.abs(Math.log10(value) - Math.round(Math.log10(value))) < 1e-9;
    const decades = (plot, values) => values.map((value) => (is_decade(value) ? value : null));
    new uPlot(
      {
        width: Math.min(786, holder.clientWidth || 786),
        height: 420,
        scales: {
          x: { time: false, distr: figure.x_is_log ? 3 : 1, range: x_range },
          y: { distr: figure.y_is_log ? 3 : 1, range: y_range },
        },
        axes: [
          { ...axis, ...x_marks, label: figure.x_label, labelFont: font },
          {
            ...axis,
            label: figure.y_label,
            labelFont: font,
            size: 84,
            filter: figure.y_is_log ? decades : all,
            values: (plot, values) => values.map((value) => (value === null ? "" : shown(value))),
          },
        ],
        series: series.map((one) => ({ ...one, value: (plot, value) => shown(value) })),
        legend: {
          markers: {
            width: 2,
            dash: (plot, index) => borders[figure.lines[index - 1].dash.join()],
          },
        },
        cursor: { drag: { x: true, y: false } },
        hooks: { draw: [marks(figure)] },
      },
      data,
      holder,
    );
  }

  document.body.classList.add("is-live");
  figures.forEach(draw);
})();
