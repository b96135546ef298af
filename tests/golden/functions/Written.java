import org.apache.pulsar.functions.proto.Function.*;
import org.apache.pulsar.functions.proto.Request.ServiceRequest;
import java.io.DataOutputStream;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.Paths;
import java.util.List;

/**
 * Values of messages as FunctionMetaDataManager.updateFunctionOnLeader builds them, by pulsar-functions-proto 4.0.7 and
 * protobuf-java 3.25.5: java -cp JARS Written.java FOLDER.
 */
public class Written {
    static FunctionMetaData function(String name, FunctionDetails.ComponentType type, SourceSpec source, long version) {
        FunctionDetails details = FunctionDetails.newBuilder().setTenant("acme").setNamespace("orders").setName(name)
            .setClassName("com.acme.Enrich").setProcessingGuarantees(ProcessingGuarantees.ATLEAST_ONCE)
            .setUserConfig("{\"rate\":7}").setRuntime(FunctionDetails.Runtime.JAVA).setAutoAck(true).setParallelism(2)
            .setSource(source).setSink(SinkSpec.newBuilder().setTopic("persistent://acme/orders/out"))
            .setResources(Resources.newBuilder().setCpu(0.5).setRam(1 << 30))
            .setComponentType(type).setRetryDetails(RetryDetails.newBuilder().setMaxMessageRetries(3)).build();
        return FunctionMetaData.newBuilder().setFunctionDetails(details)
            .setPackageLocation(PackageLocationMetaData.newBuilder().setPackagePath("acme/orders/" + name + "/a.jar"))
            .setVersion(version).setCreateTime(1764403200000L).putInstanceStates(0, FunctionState.RUNNING).build();
    }
    static SourceSpec source(String subscription, boolean pattern) {
        SourceSpec.Builder made = SourceSpec.newBuilder().setTypeClassName("[B")
            .setSubscriptionType(SubscriptionType.SHARED).setCleanupSubscription(true)
            .setSubscriptionPosition(SubscriptionPosition.EARLIEST)
            .putInputSpecs(pattern ? "persistent://acme/orders/.*" : "persistent://acme/orders/in",
                ConsumerSpec.newBuilder().setIsRegexPattern(pattern).build());
        return (subscription == null ? made : made.setSubscriptionName(subscription)).build();
    }
    static byte[] request(ServiceRequest.ServiceRequestType type, FunctionMetaData said) {
        return ServiceRequest.newBuilder().setServiceRequestType(type).setFunctionMetaData(said)
            .setWorkerId("c-standalone-fw-localhost-8080").setRequestId("7f0e3a52-5a5c-4f7e-8f5e-6d3f1c2b4a10")
            .build().toByteArray();
    }
    static void write(Path file, List<byte[]> values) throws IOException {
        try (DataOutputStream out = new DataOutputStream(Files.newOutputStream(file))) {
            for (byte[] one : values) { out.writeInt(one.length); out.write(one); }
        }
    }
    public static void main(String[] args) throws IOException {
        Path folder = Paths.get(args[0]);
        var UPDATE = ServiceRequest.ServiceRequestType.UPDATE;
        FunctionMetaData own = function("enrich", FunctionDetails.ComponentType.FUNCTION, source("enriching", false), 0);
        FunctionMetaData plain = function("plain", FunctionDetails.ComponentType.FUNCTION, source(null, false), 0);
        FunctionMetaData sink = function("to-s3", FunctionDetails.ComponentType.SINK, source("s3-sink", true), 0);
        FunctionMetaData renamed = function("to-s3", FunctionDetails.ComponentType.SINK, source("s3-größer", true), 1);
        write(folder.resolve("requests.values.bin"), List.of(request(UPDATE, own), request(UPDATE, plain),
            request(UPDATE, sink), request(UPDATE, renamed), request(ServiceRequest.ServiceRequestType.DELETE, own)));
        write(folder.resolve("compacted.values.bin"), List.of(own.toByteArray(), plain.toByteArray(),
            renamed.toByteArray()));
    }
}
