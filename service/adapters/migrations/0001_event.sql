-- The audit log: one row an event. `payload` is the event's canonical JSON; `hash` covers every other column.
-- Positions need no index: they are written in order, so the row groups' minima and maxima find them.
CREATE TABLE event (
    position BIGINT NOT NULL,
    occurred_at TIMESTAMP NOT NULL,
    kind VARCHAR NOT NULL,
    schema INTEGER NOT NULL,
    cluster VARCHAR,
    workload VARCHAR,
    attempt VARCHAR,
    incident VARCHAR,
    recommendation VARCHAR,
    node VARCHAR,
    actor VARCHAR,
    key VARCHAR UNIQUE,
    payload VARCHAR NOT NULL,
    prev_hash VARCHAR NOT NULL,
    hash VARCHAR NOT NULL
);
