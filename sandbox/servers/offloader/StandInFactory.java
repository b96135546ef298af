package sandbox.offloader;

import java.io.IOException;
import java.util.Map;
import org.apache.bookkeeper.common.util.OrderedScheduler;
import org.apache.bookkeeper.mledger.LedgerOffloaderFactory;
import org.apache.bookkeeper.mledger.LedgerOffloaderStats;
import org.apache.pulsar.common.policies.data.OffloadPoliciesImpl;

/** What a broker finds in the plug-in: makes an offloader for each offload policy with an S3 driver. */
public final class StandInFactory implements LedgerOffloaderFactory<StandIn> {

    @Override
    public boolean isDriverSupported(String driver) {
        return driver.equalsIgnoreCase("aws-s3") || driver.equalsIgnoreCase("S3");
    }

    @Override
    public StandIn create(OffloadPoliciesImpl policies, Map<String, String> metadata, OrderedScheduler scheduler)
            throws IOException {
        return new StandIn(policies, metadata, scheduler);
    }

    @Override
    public StandIn create(OffloadPoliciesImpl policies, Map<String, String> metadata, OrderedScheduler scheduler,
            LedgerOffloaderStats stats) throws IOException {
        return create(policies, metadata, scheduler);
    }
}
