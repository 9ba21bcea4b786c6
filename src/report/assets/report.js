/* SPDX-License-Identifier: MIT */
/* Pointing at the timeline and the memory map, by pointer or by keys. The drawings themselves are in the page. */
(function () {
    'use strict';

    const source = document.getElementById('data');
    if (!source)
        return;
    const data = JSON.parse(source.textContent);
    const byId = (id) => document.getElementById(id);
    const NS = 'http://www.w3.org/2000/svg';
    const HOLE = 11, ROUNDING = 10;

    /* ---- small helpers ---- */

    /* As the report prints it: two decimals, binary units. */
    function bytes(n) {
        const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB', 'PiB', 'EiB'];
        let unit = 0;
        while (n >= 1024 && unit + 1 < units.length) {
            n /= 1024;
            unit++;
        }
        return unit ? n.toFixed(2) + ' ' + units[unit] : n + ' B';
    }
    const count = (n) => n.toLocaleString('en-US');
    const clamp = (n, low, high) => Math.min(Math.max(n, low), high);

    function sums(differences) {
        let total = 0;
        return differences.map((d) => (total += d));
    }

    /* The last index whose value is not above x; -1: all are. */
    function lastAtMost(values, x) {
        let low = 0, high = values.length;
        while (low < high) {
            const middle = (low + high) >> 1;
            if (values[middle] <= x)
                low = middle + 1;
            else
                high = middle;
        }
        return low - 1;
    }

    function element(parent, name, attributes, text) {
        const made = parent.namespaceURI === NS || name === 'svg' ? document.createElementNS(NS, name) : document.createElement(name);
        for (const key in attributes)
            made.setAttribute(key, attributes[key]);
        if (text !== undefined)
            made.textContent = text;
        parent.appendChild(made);
        return made;
    }

    function swatch(parent, band) {
        const svg = element(parent, 'svg', { 'class': 'swatch', viewBox: '0 0 12 12', 'aria-hidden': 'true' });
        element(svg, 'rect', { width: 12, height: 12, 'class': 'b' + band });
    }

    /* A point of the page in the coordinates of a drawing. */
    function toDrawing(svg, event) {
        const box = svg.getBoundingClientRect(), view = svg.viewBox.baseVal;
        return { x: (event.clientX - box.left) * view.width / box.width, y: (event.clientY - box.top) * view.height / box.height };
    }

    /* ---- timeline ---- */

    function timeline(t) {
        const svg = byId('timeline'), g = t.geometry, readout = byId('readout');
        const n = t.event.length;
        for (const key of ['event', 'phase', 'layer', 'op', 'allocated', 'reserved', 'list'])
            t[key] = sums(t[key]);
        t.live = t.live.map(sums);
        const plot = svg.querySelector('.plot'), bottom = g.top + g.height;
        const cursor = element(svg, 'line', { 'class': 'cursor', y1: g.top, y2: bottom, visibility: 'hidden' });
        const brush = element(svg, 'rect', { 'class': 'brush', y: g.top, height: g.height, visibility: 'hidden' });
        const used = t.stack.filter((band) => t.event.some((e, i) => value(band, i) > 0));
        let view = { first: 0, end: t.events }, topBytes = g.bytes, at = t.peak, touched = false;

        function value(band, i) {
            if (band !== ROUNDING)
                return t.live[band][i];
            return t.live.reduce((rest, live) => rest - live[i], t.allocated[i]);
        }
        const xOf = (event) => g.left + g.width * (event - view.first) / (view.end - view.first);
        const eventAt = (x) => view.first + (x - g.left) / g.width * (view.end - view.first);
        const sampleAt = (x) => clamp(lastAtMost(t.event, eventAt(x)), 0, n - 1);
        const inView = (event) => event >= view.first && event <= view.end;

        function shortName(name) {
            const dot = name.startsWith('it') ? name.indexOf('.') : -1;
            const rest = dot < 0 ? name : name.slice(dot + 1);
            return t.phases.some((p) => p[0].includes('.mb1.')) ? rest : rest.replace(/^mb0\./, '');
        }
        const stepName = (name) => (/^it\d/.test(name) ? 'step ' + parseInt(name.slice(2), 10) : 'build');

        /* ---- what depends on the zoom ---- */

        function strip(parent, y, first, end, shade, text) {
            const x1 = Math.max(xOf(first), g.left), x2 = Math.min(xOf(end), g.left + g.width), height = g.font * 1.3;
            if (x2 <= x1)
                return;
            element(parent, 'rect', { x: x1, y: y, width: x2 - x1, height: height, 'class': 'strip' + shade });
            if (text.length * g.font * 0.48 + 2 < x2 - x1)
                element(parent, 'text', { x: (x1 + x2) / 2, y: y + height - g.font * 0.35, 'text-anchor': 'middle', 'class': 'small' }, text);
        }

        function drawStrips() {
            const strips = svg.querySelector('.strips'), height = g.font * 1.3;
            strips.textContent = '';
            if (t.phases.length <= 400)
                t.phases.forEach((p, i) => strip(strips, g.top - height - 2, p[1], p[2], i & 1, shortName(p[0])));
            for (let i = 0, shade = 0, end; i < t.phases.length; i = end, shade ^= 1) {
                const name = stepName(t.phases[i][0]);
                for (end = i + 1; end < t.phases.length && stepName(t.phases[end][0]) === name;)
                    end++;
                strip(strips, g.top - 2 * height - 3, t.phases[i][1], t.phases[end - 1][2], shade, name);
            }
        }

        function step(span, want) {
            const power = Math.pow(10, Math.floor(Math.log10(Math.max(span / want, 1))));
            return [1, 2, 5, 10].map((f) => f * power).find((s) => span / s <= want) || 10 * power;
        }

        function drawX() {
            const axis = svg.querySelector('.x-axis'), by = step(view.end - view.first, 7);
            axis.textContent = '';
            for (let event = Math.ceil(view.first / by) * by; event <= view.end; event += by) {
                const x = xOf(event);
                element(axis, 'line', { x1: x, x2: x, y1: bottom, y2: bottom + g.font * 0.3, 'class': 'axis' });
                element(axis, 'text', { x: x, y: bottom + g.font * 1.25, 'text-anchor': 'middle', 'class': 'small' }, count(event));
            }
        }

        function drawY() {
            const axis = svg.querySelector('.y-axis');
            let unit = 1, k = 0;
            while (topBytes / unit >= 3 * 1024 && k < 5) {
                unit *= 1024;
                k++;
            }
            const by = step(topBytes / unit, 6) * unit;
            axis.textContent = '';
            for (let b = 0; b <= topBytes; b += by) {
                const y = bottom - g.height * b / topBytes;
                element(axis, 'line', { x1: g.left, x2: g.left + g.width, y1: y, y2: y, 'class': 'grid' });
                element(axis, 'text', { x: g.left - g.font * 0.4, y: y + g.font * 0.33, 'text-anchor': 'end', 'class': 'small' },
                        b ? count(b / unit) + ' ' + ['B', 'KiB', 'MiB', 'GiB', 'TiB', 'PiB'][k] : '0');
            }
        }

        /* A flag stays with its event and its height, and goes when that is out of sight. */
        function move(selector, event, atBytes) {
            const flag = svg.querySelector(selector);
            if (!flag)
                return;
            const x = event === null ? 0 : xOf(event) - (g.left + g.width * event / t.events);
            const y = g.height * atBytes * (1 / g.bytes - 1 / topBytes);
            const label = flag.querySelector('text');
            if (label && event !== null) { /* on the side where there is room */
                const left = xOf(event) > g.left + g.width * 0.5, at = g.left + g.width * event / t.events;
                label.setAttribute('x', at + (left ? -0.5 : 0.5) * g.font);
                label.setAttribute('text-anchor', left ? 'end' : 'start');
            }
            flag.setAttribute('transform', 'translate(' + x + ' ' + y + ')');
            flag.setAttribute('visibility', event === null || inView(event) ? 'visible' : 'hidden');
        }

        function draw() {
            const kx = t.events / (view.end - view.first), ky = g.bytes / topBytes;
            const dx = g.left - kx * (g.left + g.width * view.first / t.events), dy = bottom * (1 - ky);
            plot.setAttribute('transform', 'matrix(' + [kx, 0, 0, ky, dx, dy].join(' ') + ')');
            document.querySelectorAll('pattern[id^="z"]').forEach((p) => p.setAttribute('patternTransform', 'scale(' + 1 / kx + ' ' + 1 / ky + ')'));
            drawStrips();
            drawX();
            if (topBytes !== g.bytes || svg.dataset.scaled) {
                drawY();
                svg.dataset.scaled = 'yes';
            }
            move('.peak', t.event[t.peak], t.allocated[t.peak]);
            move('.failing', t.events, t.reserved[n - 1]);
            move('.limit', null, g.shows_available || topBytes !== g.bytes ? t.available : 0);
            svg.dataset.first = view.first;
            svg.dataset.end = view.end;
            show(at, false);
        }

        function zoom(first, end) {
            view = end - first < 4 ? { first: 0, end: t.events } : { first: first, end: end };
            if (!inView(t.event[at]))
                at = clamp(lastAtMost(t.event, first) + 1, 0, n - 1);
            const index = t.phases.findIndex((p) => p[1] === view.first && p[2] === view.end);
            byId('zoom').value = view.end - view.first === t.events ? 'all' : index < 0 ? 'part' : String(index);
            draw();
        }
        const zoomToPhase = (i) => zoom(t.phases[i][1], t.phases[i][2]);

        /* ---- the readout ---- */

        function row(body, cells) {
            const tr = element(body, 'tr', {});
            cells.forEach((cell, i) => {
                const td = element(tr, 'td', i ? { 'class': 'n' } : {}, typeof cell === 'string' ? cell : undefined);
                if (typeof cell !== 'string') {
                    swatch(td, cell.band);
                    td.append(' ' + cell.text);
                }
            });
        }

        function where(i) {
            const phase = t.phases[t.phase[i]], parts = ['event ' + count(t.event[i]), phase[0]];
            if (t.layer[i] >= 0)
                parts.push('layer ' + t.layer[i]);
            if (t.ops[t.op[i]])
                parts.push(t.ops[t.op[i]]);
            return parts.join(', ') + (t.failed && i === n - 1 ? ': here it dies' : i === t.peak ? ': the peak' : '');
        }

        function fill(i) {
            readout.textContent = '';
            element(readout, 'p', { 'class': 'where' }).append(element(readout, 'strong', {}, where(i)));
            const columns = element(readout, 'div', { 'class': 'columns' });
            const left = element(columns, 'table', {}), right = element(columns, 'table', {});
            element(left, 'caption', {}, bytes(t.allocated[i]) + ' allocated, ' + bytes(t.reserved[i]) + ' reserved');
            element(right, 'caption', {}, 'Largest tensors');
            const bands = element(left, 'tbody', {}), largest = element(right, 'tbody', {});
            for (const band of used.slice().reverse())
                row(bands, [{ band: band, text: band === ROUNDING ? 'rounding in blocks' : data.categories[band] }, bytes(value(band, i)),
                            count(value(band, i))]);
            const list = t.lists[t.list[i]];
            for (let k = 0; k < list.length; k += 2) {
                const kind = t.kinds[list[k]];
                row(largest, [{ band: kind[0], text: t.ops[kind[1]] || data.categories[kind[0]] },
                              (list[k + 1] > 1 ? count(list[k + 1]) + ' \u00d7 ' : '') + bytes(kind[2])]);
            }
        }

        function show(i, follow) {
            at = clamp(i, 0, n - 1);
            if (follow && !inView(t.event[at])) {
                const half = (view.end - view.first) / 2, first = clamp(t.event[at] - half, 0, t.events - 2 * half);
                view = { first: first, end: first + 2 * half };
                byId('zoom').value = 'part';
                draw();
                return;
            }
            const x = xOf(t.event[at]);
            cursor.setAttribute('x1', x);
            cursor.setAttribute('x2', x);
            cursor.setAttribute('visibility', touched && inView(t.event[at]) ? 'visible' : 'hidden');
            svg.setAttribute('aria-valuenow', at);
            svg.setAttribute('aria-valuetext', where(at) + ', ' + bytes(t.allocated[at]) + ' allocated, ' + bytes(t.reserved[at]) + ' reserved');
            fill(at);
        }

        /* ---- pointer and keys ---- */

        let dragFrom = null;
        svg.addEventListener('pointermove', (event) => {
            touched = true;
            const x = clamp(toDrawing(svg, event).x, g.left, g.left + g.width);
            if (dragFrom !== null && Math.abs(x - dragFrom) > 4) {
                brush.setAttribute('x', Math.min(x, dragFrom));
                brush.setAttribute('width', Math.abs(x - dragFrom));
                brush.setAttribute('visibility', 'visible');
            }
            show(sampleAt(x), false);
        });
        svg.addEventListener('pointerdown', (event) => {
            const p = toDrawing(svg, event);
            if (event.button === 0 && p.y >= g.top && p.y <= bottom)
                dragFrom = clamp(p.x, g.left, g.left + g.width);
        });
        window.addEventListener('pointerup', (event) => {
            if (dragFrom === null)
                return;
            const x = clamp(toDrawing(svg, event).x, g.left, g.left + g.width), from = dragFrom;
            dragFrom = null;
            brush.setAttribute('visibility', 'hidden');
            if (Math.abs(x - from) > 4)
                zoom(Math.floor(eventAt(Math.min(x, from))), Math.ceil(eventAt(Math.max(x, from))));
        });
        svg.addEventListener('dblclick', () => zoomToPhase(t.phase[at]));
        svg.addEventListener('click', (event) => {
            const p = toDrawing(svg, event);
            if (p.y < g.top - g.font * 1.3 - 2 && p.x >= g.left) { /* on a step */
                const name = stepName(t.phases[t.phase[sampleAt(p.x)]][0]), phases = t.phases.filter((q) => stepName(q[0]) === name);
                zoom(phases[0][1], phases[phases.length - 1][2]);
            } else if (p.y < g.top && p.x >= g.left) {
                zoomToPhase(t.phase[sampleAt(p.x)]);
            }
        });

        const firstOf = (phase) => lastAtMost(t.phase, phase - 1) + 1;
        const keys = {
            ArrowRight: () => show(at + 1, true),
            ArrowLeft: () => show(at - 1, true),
            PageDown: () => show(firstOf(t.phase[at] + 1), true),
            PageUp: () => show(firstOf(at === firstOf(t.phase[at]) ? t.phase[at] - 1 : t.phase[at]), true),
            Home: () => show(0, true),
            End: () => show(n - 1, true),
            p: () => show(t.peak, true),
            Enter: () => zoomToPhase(t.phase[at]),
            Escape: () => zoom(0, t.events),
        };
        svg.addEventListener('keydown', (event) => {
            const act = keys[event.key.length === 1 ? event.key.toLowerCase() : event.key];
            if (!act || event.ctrlKey || event.altKey || event.metaKey)
                return;
            event.preventDefault();
            touched = true;
            act();
        });

        /* ---- controls ---- */

        const select = byId('zoom');
        element(select, 'option', { value: 'all' }, 'whole run');
        t.phases.forEach((p, i) => element(select, 'option', { value: i }, p[0]));
        element(select, 'option', { value: 'part', hidden: '' }, 'a part');
        select.addEventListener('change', () => (select.value === 'all' ? zoom(0, t.events) : zoomToPhase(Number(select.value))));
        byId('whole').addEventListener('click', () => zoom(0, t.events));
        byId('to-peak').addEventListener('click', () => show(t.peak, true));
        byId('scale').addEventListener('change', (event) => {
            topBytes = event.target.checked ? t.available * 1.1 : g.bytes;
            draw();
        });
        byId('scale-label').hidden = g.shows_available;
        byId('controls').addEventListener('submit', (event) => event.preventDefault());
        for (const id of ['controls', 'timeline-help', 'readout'])
            byId(id).hidden = false;
        const named = { tabindex: '0', role: 'slider', 'aria-label': 'Timeline, live bytes over the run', 'aria-valuemin': '0',
                        'aria-valuemax': String(n - 1) };
        for (const key in named)
            svg.setAttribute(key, named[key]);
        svg.querySelector('title').remove(); /* else it hides the readout as a tooltip */
        show(at, false);
    }

    /* ---- memory map ---- */

    function memoryMap(m) {
        const svg = byId('map'), g = m.geometry, readout = byId('map-readout');
        const picked = element(svg, 'path', { 'class': 'picked' });
        const blocks = [];
        let next = 0;
        m.segments.forEach((s, i) => {
            let position = s[0];
            for (let k = 0; k < s[4]; k++, next++) {
                blocks.push({ position: position, segment: i, b: m.blocks[next] });
                position += m.blocks[next][0];
            }
        });
        if (!blocks.length)
            return;
        const positions = blocks.map((block) => block.position);
        const isHole = (block) => block.b.length === 1;
        let at = 0, touched = false;

        function boxes(position, size) {
            let d = '';
            while (size > 0) {
                const row = Math.floor(position / m.row), offset = position % m.row, here = Math.min(size, m.row - offset);
                const width = g.width * here / m.row;
                d += 'M' + (g.left + g.width * offset / m.row) + ' ' + (g.top + g.pitch * row) + 'h' + width + 'v' + g.row_height + 'h' + -width + 'z';
                position += here;
                size -= here;
            }
            return d;
        }

        function text(block) {
            const s = m.segments[block.segment], b = block.b;
            const segment = 'Segment ' + (block.segment + 1) + ' of ' + m.segments.length + ': ' + bytes(s[1]) + ', ' + (s[2] ? 'small' : 'large') +
                ' pool' + (s[3] ? ', stream ' + s[3] : '') + '. ';
            if (isHole(block))
                return segment + 'Hole: ' + bytes(b[0]) + ' (' + count(b[0]) + ').';
            if (b.length === 2)
                return segment + count(b[1]) + ' small blocks: ' + bytes(b[0]) + '.';
            return segment + 'Block: ' + bytes(b[0]) + ', ' + data.categories[b[2]] + (m.ops[b[3]] ? ', ' + m.ops[b[3]] : '') +
                (b[4] >= 0 ? ', layer ' + b[4] : '') + ' (' + count(b[1]) + ' requested of ' + count(b[0]) + ').';
        }

        function show(i) {
            at = clamp(i, 0, blocks.length - 1);
            const block = blocks[at];
            picked.setAttribute('d', touched ? boxes(block.position, block.b[0]) : '');
            readout.textContent = '';
            swatch(readout, isHole(block) ? HOLE : block.b.length === 2 ? ROUNDING : block.b[2]);
            readout.append(' ' + text(block));
            svg.setAttribute('aria-valuenow', at);
            svg.setAttribute('aria-valuetext', text(block));
        }

        function firstOfSegment(segment) {
            const i = blocks.findIndex((block) => block.segment >= segment);
            return i < 0 ? blocks.length - 1 : i;
        }
        function nextHole() {
            for (let k = 1; k <= blocks.length; k++)
                if (isHole(blocks[(at + k) % blocks.length]))
                    return (at + k) % blocks.length;
            return at;
        }
        function largestHole() {
            return blocks.reduce((best, block, i) => (isHole(block) && (!isHole(blocks[best]) || block.b[0] > blocks[best].b[0]) ? i : best), at);
        }
        const keys = {
            ArrowRight: () => at + 1,
            ArrowLeft: () => at - 1,
            ArrowDown: () => firstOfSegment(blocks[at].segment + 1),
            ArrowUp: () => firstOfSegment(Math.max(blocks[at].segment - 1, 0)),
            Home: () => 0,
            End: () => blocks.length - 1,
            h: nextHole,
            l: largestHole,
        };

        svg.addEventListener('pointermove', (event) => {
            touched = true;
            const p = toDrawing(svg, event), row = Math.floor((p.y - g.top) / g.pitch), x = (p.x - g.left) / g.width;
            if (row < 0 || x < 0 || x >= 1)
                return;
            const position = row * m.row + x * m.row, i = lastAtMost(positions, position);
            if (i >= 0 && position < positions[i] + blocks[i].b[0])
                show(i);
        });
        svg.addEventListener('keydown', (event) => {
            const go = keys[event.key.length === 1 ? event.key.toLowerCase() : event.key];
            if (!go || event.ctrlKey || event.altKey || event.metaKey)
                return;
            event.preventDefault();
            touched = true;
            show(go());
        });
        const named = { tabindex: '0', role: 'slider', 'aria-label': 'Memory map, block by block', 'aria-valuemin': '0',
                        'aria-valuemax': String(blocks.length - 1) };
        for (const key in named)
            svg.setAttribute(key, named[key]);
        svg.querySelector('title').remove();
        for (const id of ['map-help', 'map-readout'])
            byId(id).hidden = false;
        show(largestHole());
    }

    if (byId('timeline'))
        timeline(data.timeline);
    if (byId('map'))
        memoryMap(data.map);
}());
