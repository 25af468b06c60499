// An HTTP server with two workers that share a port: cluster.js server PORT; and what asks it: cluster.js client PORT.
const cluster = require('cluster'), crypto = require('crypto'), http = require('http');
const port = Number(process.argv[3]);
const body = n => Buffer.alloc(n, 'gosmc ');

if (process.argv[2] === 'client') {
  const agent = new http.Agent({keepAlive: true, maxSockets: 20});
  const once = new http.Agent({keepAlive: false});
  const post = (i, by = i % 10 ? agent : undefined) => new Promise((resolve, reject) => {
    const data = body(i * 997);
    const r = http.request({port, host: '127.0.0.1', method: 'POST', path: '/' + i, agent: by, headers: {'Content-Length': data.length}}, res => {
      const h = crypto.createHash('sha256');
      res.on('data', d => h.update(d));
      res.on('end', () => resolve([i, res.statusCode, h.digest('hex'), res.headers['x-worker']]));
      res.on('error', reject);
    });
    r.on('error', reject);
    r.end(data);
  });
  (async () => {
    const results = [], workers = new Set();
    while (workers.size < 2) // the second one may listen later than the first
      workers.add((await post(10, once)).pop());
    for (let round = 0; round < 10; round++)
      for (const r of await Promise.all([...Array(100).keys()].map(i => post(i)))) {
        workers.add(r.pop());
        results.push(r.join(' '));
      }
    console.log(results.length, workers.size, crypto.createHash('sha256').update(results.sort().join()).digest('hex'));
    process.exit(0);
  })().catch(e => { console.error(e); process.exit(1); });
} else if (cluster.isPrimary) {
  cluster.fork();
  cluster.fork();
  process.on('SIGTERM', () => { for (const w of Object.values(cluster.workers)) w.kill(); process.exit(0); });
} else {
  http.createServer((req, res) => {
    const parts = [];
    req.on('data', d => parts.push(d));
    req.on('end', () => {
      res.setHeader('x-worker', cluster.worker.id);
      res.write(Buffer.concat(parts));
      res.end(body(100000));
    });
  }).listen(port, '127.0.0.1');
}
