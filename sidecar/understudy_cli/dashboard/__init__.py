"""The dashboard: a web page about all jobs, which follows the cluster.

Data flows one way: `fleets` follows the cluster or a local run, and yields a Fleet whenever something has changed.
`understudy_cli.views.pages` makes the rows of a page from it, and `server` sends their changes to the browsers as
server-sent events. `assets` has the page itself: plain files without a build step.

Rules: the page only reads, and answers GET alone. It has no login, so it listens on 127.0.0.1 unless an option
names another address. Text of the cluster reaches the browser as JSON only, and the page shows it as text, never as
HTML.
"""
