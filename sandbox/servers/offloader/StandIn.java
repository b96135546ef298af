package sandbox.offloader;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.HashMap;
import java.util.Map;
import java.util.UUID;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import org.apache.bookkeeper.client.api.ReadHandle;
import org.apache.bookkeeper.common.util.OrderedScheduler;
import org.apache.bookkeeper.mledger.LedgerOffloader;
import org.apache.pulsar.common.policies.data.OffloadPolicies;
import org.apache.pulsar.common.policies.data.OffloadPoliciesImpl;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * A broker's offloader: ledgers to S3, back, and gone, in the format of the brokers' own (jclouds, Pulsar 4.0.7).
 *
 * <p>When a ledger is offloaded, what metadata says of it, when BookKeeper's copy goes and when this one does is decided
 * by the broker (ManagedLedgerImpl), as with any offloader. Files in the folder {@code offloader} of the broker's working
 * directory make it misbehave for as long as they are there: {@code hold-offloads} (data object written, index not yet),
 * {@code fail-offloads} (there, too), {@code fail-reads}.
 */
final class StandIn implements LedgerOffloader {
    private static final Logger log = LoggerFactory.getLogger(StandIn.class);
    private static final String VERSION_KEY = "s3managedledgeroffloaderformatversion";
    private static final int SMALLEST_BLOCK = 5 << 20;

    private final OffloadPoliciesImpl policies;
    private final Map<String, String> userMetadata;
    private final OrderedScheduler scheduler;
    private final S3 s3;
    private final String bucket;
    private final String region;
    private final String endpoint;
    private final int blockSize;
    private final int bufferSize;

    StandIn(OffloadPoliciesImpl policies, Map<String, String> userMetadata, OrderedScheduler scheduler)
            throws IOException {
        this.policies = policies;
        this.userMetadata = userMetadata;
        this.scheduler = scheduler;
        bucket = own(policies.getS3ManagedLedgerOffloadBucket(), policies.getManagedLedgerOffloadBucket(), "");
        region = own(policies.getS3ManagedLedgerOffloadRegion(), policies.getManagedLedgerOffloadRegion(), "");
        endpoint = own(policies.getS3ManagedLedgerOffloadServiceEndpoint(),
                policies.getManagedLedgerOffloadServiceEndpoint(), "");
        blockSize = own(policies.getS3ManagedLedgerOffloadMaxBlockSizeInBytes(),
                policies.getManagedLedgerOffloadMaxBlockSizeInBytes(), 64 << 20);
        bufferSize = own(policies.getS3ManagedLedgerOffloadReadBufferSizeInBytes(),
                policies.getManagedLedgerOffloadReadBufferSizeInBytes(), 1 << 20);
        if (bucket.isEmpty() || endpoint.isEmpty() || blockSize < SMALLEST_BLOCK) {
            throw new IOException("an offload policy needs a bucket, an endpoint and blocks of 5 MiB or more");
        }
        s3 = new S3(endpoint, region, System.getenv("AWS_ACCESS_KEY_ID"), System.getenv("AWS_SECRET_ACCESS_KEY"));
    }

    /** aws-s3 has names of its own for what it is told, which come first; S3 has none. */
    private <T> T own(T named, T generic, T otherwise) {
        boolean aws = policies.getManagedLedgerOffloadDriver().equalsIgnoreCase("aws-s3");
        return aws && named != null ? named : generic != null ? generic : otherwise;
    }

    @Override
    public String getOffloadDriverName() {
        return policies.getManagedLedgerOffloadDriver().equalsIgnoreCase("aws-s3") ? "aws-s3" : "S3";
    }

    @Override
    public Map<String, String> getOffloadDriverMetadata() {
        String constant = getOffloadDriverName().equals("aws-s3") ? "AWS_S3" : "S3";
        return Map.of("managedLedgerOffloadDriver", constant, "bucket", bucket, "region", region,
                "serviceEndpoint", endpoint);
    }

    @Override
    public OffloadPolicies getOffloadPolicies() {
        return policies;
    }

    @Override
    public void close() {
    }

    @Override
    public CompletableFuture<Void> offload(ReadHandle ledger, UUID uuid, Map<String, String> extra) {
        String data = uuid + "-ledger-" + ledger.getId();
        return run(ledger.getId(), () -> {
            if (ledger.getLength() == 0 || !ledger.isClosed() || ledger.getLastAddConfirmed() < 0) {
                throw new IllegalArgumentException("an empty or open ledger is never offloaded");
            }
            S3.Upload upload = s3.begin(bucket, data, metadata("data", extra));
            try {
                Written written = Written.of(ledger, blockSize, upload::part);
                upload.complete();
                return written;
            } catch (Exception error) {
                upload.abort();
                throw error;
            }
        }).thenCompose(this::held).thenCompose(written -> run(ledger.getId(), () -> {
            try {
                if (told("fail-offloads")) {
                    throw new IOException("told to fail offloads");
                }
                s3.put(bucket, data + "-index", written.index(ledger.getLedgerMetadata()), metadata("index", extra));
                log.info("Offloaded ledger {} to {}", ledger.getId(), data);
                return null;
            } catch (Exception error) {
                s3.delete(bucket, data);
                throw error;
            }
        }));
    }

    /** Completes once nobody holds offloads; no thread waits for it. */
    private CompletableFuture<Written> held(Written written) {
        CompletableFuture<Written> released = new CompletableFuture<>();
        look(released, written);
        return released;
    }

    private void look(CompletableFuture<Written> released, Written written) {
        if (told("hold-offloads")) {
            scheduler.schedule(() -> look(released, written), 50, TimeUnit.MILLISECONDS);
        } else {
            released.complete(written);
        }
    }

    private Map<String, String> metadata(String role, Map<String, String> extra) {
        Map<String, String> all = new HashMap<>(userMetadata);
        all.put("role", role);
        all.putAll(extra);
        all.put(VERSION_KEY, "1");
        return all;
    }

    @Override
    public CompletableFuture<ReadHandle> readOffloaded(long ledgerId, UUID uuid, Map<String, String> says) {
        return run(ledgerId, () -> OffloadedHandle.open(this, says.get("bucket"), uuid + "-ledger-" + ledgerId, ledgerId));
    }

    @Override
    public CompletableFuture<Void> deleteOffloaded(long ledgerId, UUID uuid, Map<String, String> says) {
        return run(ledgerId, () -> {
            String data = uuid + "-ledger-" + ledgerId;
            s3.delete(says.get("bucket"), data);
            s3.delete(says.get("bucket"), data + "-index");
            log.info("Deleted offloaded copy {}", data);
            return null;
        });
    }

    /** An object of the format version that there is, whole or bytes {@code from} to before {@code until}. */
    byte[] get(String from, String key, long start, long until) throws IOException {
        if (told("fail-reads")) {
            throw new IOException("told to fail reads");
        }
        S3.Found found = s3.get(from, key, start, until);
        if (!"1".equals(found.metadata(VERSION_KEY))) {
            throw new IOException("Invalid object version of " + key + ": " + found.metadata(VERSION_KEY));
        }
        return found.body();
    }

    int bufferSize() {
        return bufferSize;
    }

    interface Work<T> {
        T run() throws Exception;
    }

    /** Work on the thread of a ledger; its failure is the future's. */
    <T> CompletableFuture<T> run(long ledgerId, Work<T> work) {
        CompletableFuture<T> done = new CompletableFuture<>();
        scheduler.chooseThread(ledgerId).execute(() -> {
            try {
                done.complete(work.run());
            } catch (Throwable error) {
                log.warn("Ledger {}: {}", ledgerId, error.toString());
                done.completeExceptionally(error);
            }
        });
        return done;
    }

    private static boolean told(String name) {
        return Files.exists(Path.of("offloader", name));
    }
}
