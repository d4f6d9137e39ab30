// The echo programs for Node.js; see echo_client.py for the protocol.
//
// usage: echo.js server PORT [WORKERS] | client PORT | http PORT FILE | get PORT
'use strict';
const net = require('net');
const http = require('http');
const cluster = require('cluster');
const crypto = require('crypto');
const fs = require('fs');
const [role, port, more] = process.argv.slice(2);

function serve() {
  net.createServer({ allowHalfOpen: true }, (socket) => {
    let head = '';
    let left = -1;
    socket.on('data', (data) => {
      while (data.length > 0) {
        if (left < 0) {
          const end = data.indexOf(10);
          head += data.subarray(0, end < 0 ? data.length : end).toString();
          if (end < 0) return;
          left = Number(head);
          head = '';
          data = data.subarray(end + 1);
          if (left === 0) left = -1;
          continue;
        }
        const part = data.subarray(0, left);
        if (!socket.write(part)) {
          // Readers that are slow must slow the writer down, too.
          socket.pause();
          socket.once('drain', () => socket.resume());
        }
        left -= part.length;
        if (left === 0) left = -1;
        data = data.subarray(part.length);
      }
    });
    socket.on('end', () => socket.end());
    socket.on('error', (error) => console.error(error.message));
  }).listen(Number(port), '127.0.0.1');
}

function talk() {
  const sizes = [1, 3000, 70000, 1500000, 17, 4000000];
  const one = (number) => new Promise((resolve, reject) => {
    const socket = net.connect(Number(port), '127.0.0.1');
    let turn = 0;
    let block;
    let got;
    const next = () => {
      if (turn === sizes.length) return socket.end();
      block = crypto.randomBytes(sizes[(turn + number) % sizes.length]);
      got = [];
      turn += 1;
      socket.write(block.length + '\n');
      socket.write(block);
    };
    socket.on('connect', next);
    socket.on('data', (data) => {
      got.push(data);
      const length = got.reduce((sum, part) => sum + part.length, 0);
      if (length < block.length) return;
      if (!Buffer.concat(got).equals(block)) return reject(new Error('other bytes'));
      next();
    });
    socket.on('end', () => (turn === sizes.length ? resolve() : reject(new Error('an early end'))));
    socket.on('error', reject);
  });
  Promise.all([0, 1, 2, 3, 4, 5].map(one)).then(() => console.log('the same bytes came back'));
}

function web() {
  http.createServer((request, response) => {
    if (request.method === 'GET') return fs.createReadStream(more).pipe(response);
    const digest = crypto.createHash('sha256');
    request.on('data', (data) => digest.update(data));
    request.on('end', () => response.end(digest.digest('hex')));
  }).listen(Number(port), '127.0.0.1');
}

function get() {
  // Many requests over a few connections that are kept.
  const agent = new http.Agent({ keepAlive: true, maxSockets: 3 });
  const one = () => new Promise((resolve, reject) => {
    const digest = crypto.createHash('sha256');
    http.get({ host: '127.0.0.1', port: Number(port), agent }, (response) => {
      response.on('data', (data) => digest.update(data));
      response.on('end', () => resolve(digest.digest('hex')));
    }).on('error', reject);
  });
  Promise.all(Array.from({ length: 12 }, one)).then((digests) => {
    console.log(Array.from(new Set(digests)).join(' '));
    agent.destroy();
  });
}

if (role === 'server' && more && cluster.isPrimary) {
  for (let worker = 0; worker < Number(more); worker += 1) cluster.fork();
  process.on('SIGTERM', () => {
    for (const worker of Object.values(cluster.workers)) worker.kill();
    process.exit(0);
  });
} else {
  ({ server: serve, client: talk, http: web, get })[role]();
}
